//! The keys of certificates: for clients, and for the servers of the store.

use super::spec::{ALWAYS_CHECKED, Keys, elsewhere, key, meant};

pub(in crate::config) const TLS: Keys = Keys {
    name: "tls",
    meaning: "Certificates for clients. The gateway then speaks TLS 1.2 and 1.3 only.",
    rules: r##""required": ["cert", "key"]"##,
    specs: &[
        key("cert", "file")
            .default("required")
            .means("PEM: the certificate, then its chain. Shown to callers that name no host (SNI), or none \
                   of `certificates`")
            .schema(r##""$ref": "#/$defs/file",
"examples": ["tls/cert.pem"]"##),
        key("key", "file")
            .default("required")
            .means("PEM: its private key as PKCS #8, PKCS #1 or SEC 1, not encrypted. It may be the same file \
                   as `cert`")
            .schema(r##""$ref": "#/$defs/file",
"examples": ["tls/key.pem"]"##),
        key("client_ca", "file")
            .default("callers show none")
            .means("PEM: certificates of authorities. Callers must show a certificate of one of them; a \
                   handshake without fails")
            .schema(r##""$ref": "#/$defs/optional_file""##),
        key("certificates", "list of `{ cert, key }`")
            .means("at most 1000 more. The gateway reads the names from the certificates; where none fits, it \
                   uses the first pair")
            .schema(r##""type": ["array", "null"],
"default": [],
"maxItems": 1000,
"items": { "$ref": "#/$defs/certificate" }"##),
    ],
    others: &[
        meant(&["certificate", "ssl_certificate", "crt", "chain"], &["cert"]),
        meant(&["private_key", "ssl_certificate_key"], &["key"]),
        meant(&["ca", "ca_file", "verify_client", "ssl_client_certificate"], &["client_ca"]),
        meant(&["certs"], &["certificates"]),
        elsewhere(&["min_version", "protocols", "alpn"], VERSIONS),
    ],
};

pub(in crate::config) const CERTIFICATE: Keys = Keys {
    name: "certificate",
    meaning: "A certificate and its private key.",
    rules: r##""required": ["cert", "key"]"##,
    specs: &[
        key("cert", "file")
            .default("required")
            .means("PEM: the certificate, then its chain")
            .schema(r##""$ref": "#/$defs/file""##),
        key("key", "file")
            .default("required")
            .means("PEM: its private key, not encrypted. It may be the same file as `cert`")
            .schema(r##""$ref": "#/$defs/file""##),
    ],
    others: &[
        meant(&["certificate", "crt"], &["cert"]),
        meant(&["private_key"], &["key"]),
        elsewhere(&["host", "server_name"], "the names are in the certificate"),
    ],
};

pub(in crate::config) const STORE_TLS: Keys = Keys {
    name: "store_tls",
    meaning: "How the servers of a `rediss://` URL are checked, and the certificate that they are shown.",
    rules: r##""type": ["object", "null"]"##,
    specs: &[
        key("ca", "file")
            .default("the system's")
            .means("PEM certificates of the authorities that certificates of the servers are checked with")
            .schema(r##""type": ["string", "null"]"##),
        key("cert", "file")
            .means("the certificate that the gateway presents to servers that ask for one; it needs `key`")
            .schema(r##""type": ["string", "null"]"##),
        key("key", "file")
            .means("PEM: the private key of `cert`")
            .schema(r##""type": ["string", "null"]"##),
        key("server_name", "text")
            .default("the host")
            .means("the name that certificates of the servers must have. By default it is the host of the \
                   URL, or the one that Sentinels or the Cluster name, which is usually an address")
            .schema(r##""type": ["string", "null"]"##),
    ],
    others: &[
        meant(&["ca_file", "ca_cert"], &["ca"]),
        meant(&["certificate", "client_cert", "crt"], &["cert"]),
        meant(&["private_key", "client_key"], &["key"]),
        meant(&["sni"], &["server_name"]),
        elsewhere(&["insecure", "insecure_skip_verify", "verify"], ALWAYS_CHECKED),
    ],
};

const VERSIONS: &str = "TLS 1.2 and 1.3 and HTTP/1.1 and 2 are always offered";
