{{- define "paceway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 57 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 57 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 57 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paceway.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "paceway.labels" -}}
{{ include "paceway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* The least number of gateways. */ -}}
{{- define "paceway.gateways" -}}
{{- if .Values.autoscaling.enabled }}{{ .Values.autoscaling.minReplicas }}{{ else }}{{ .Values.replicaCount }}{{ end -}}
{{- end -}}

{{- /* The configuration with the keys that the chart sets. */ -}}
{{- define "paceway.config" -}}
{{- $config := fromYaml .Values.config -}}
{{- if hasKey $config "Error" }}{{ fail (printf "config is no YAML mapping: %s" (get $config "Error")) }}{{ end -}}
{{- range list "listen" "admin" "shutdown_delay" "drain_timeout" -}}
{{- if hasKey $config . }}{{ fail (printf "config.%s is set by the chart" .) }}{{ end -}}
{{- end -}}
{{- $admin := dict "listen" "0.0.0.0:9090" "read" .Values.admin.read -}}
{{- if .Values.admin.existingSecret -}}
{{- $_ := set $admin "token" "${file:/run/secrets/paceway-admin/token}" -}}
{{- else if eq .Values.admin.read "token" -}}
{{- fail "admin.read: token needs admin.existingSecret" -}}
{{- end -}}
{{- $_ := set $config "listen" "0.0.0.0:8080" -}}
{{- $_ := set $config "admin" $admin -}}
{{- $_ := set $config "shutdown_delay" (printf "%ds" (int .Values.shutdownDelaySeconds)) -}}
{{- $_ := set $config "drain_timeout" (printf "%ds" (int .Values.drainTimeoutSeconds)) -}}
{{- $gateways := include "paceway.gateways" . | int -}}
{{- $url := ternary "${REDIS_URL}" .Values.redis.url (ne .Values.redis.existingSecret "") -}}
{{- if $url -}}
{{- $_ := set $config "store" (merge (dict "url" $url "gateways" $gateways) (default (dict) $config.store)) -}}
{{- else if or (gt $gateways 1) .Values.autoscaling.enabled -}}
{{- fail "several gateways share one quota through a Redis: set redis.url or redis.existingSecret, or replicaCount: 1" -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
