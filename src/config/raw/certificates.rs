//! Reads `tls` of clients, of upstreams and of the store. The files that it names are read and checked here, and read again
//! where they are used. Never quotes their content.

use crate::{
    config::{
        http::ServerTls,
        keys::CERTIFICATE,
        reader::{ConfigReader, ConfigSection, Field},
        unit::Bytes,
        yaml::YamlValue,
    },
    store::redis::RedisUrl,
    tls::{self, KeyPair, TlsError},
    upstream::{ClientTls, Target},
};
use rustls::{
    RootCertStore,
    crypto::aws_lc_rs::default_provider,
    pki_types::{ServerName, UnixTime},
    sign::CertifiedKey,
};
use std::{
    fs,
    path::{self, Path, PathBuf},
};

/// The most bytes of a file with certificates or keys. A file with all public authorities has a quarter of this.
const MAX_FILE: u64 = 1 << 20;

impl ConfigReader {
    pub(super) fn server_tls(&mut self, root: &ConfigSection<'_>) -> Option<ServerTls> {
        let section = self.section_at(root, "tls")?;
        let first = self.pair(&section);
        let others = self.read_list(&section, "certificates", |reader, item| {
            let section = reader.section(item, &CERTIFICATE)?;
            let pair = reader.pair(&section)?;
            if first.as_ref() == Some(&pair) {
                reader.note_at(item, "named twice");
            }
            Some(pair)
        });
        let certificates = first.into_iter().chain(others).collect();
        let client_ca = self.authorities(&section, "client_ca", &[]);
        Some(ServerTls { certificates, client_ca })
    }

    /// Reads the keys for TLS with an upstream. It has no `targets` if its URL is a mistake already.
    pub(super) fn client_tls(
        &mut self,
        section: &ConfigSection<'_>,
        targets: &[Target],
    ) -> ClientTls {
        if targets.first().is_some_and(|target| !target.is_https()) {
            for key in ["ca", "client_cert", "server_name"] {
                if let Some(field) = section.get(key) {
                    let reason = "needs https, and the URL of this upstream begins with `http://`";
                    self.note_at(&field, reason);
                }
            }
            return ClientTls::default();
        }
        let client_cert = section.get("client_cert").and_then(|field| match &field.node.value {
            YamlValue::Map(_) => {
                let section = self.section_at(section, "client_cert")?;
                self.pair(&section)
            }
            _ => {
                let file = self.file(&field)?;
                self.checked(KeyPair { cert: file.clone(), key: file }, &field, &field)
            }
        });
        let named = self.read_by(section, "server_name", server_name);
        let names = match &named {
            Some(name) => vec![name.as_str()],
            None => targets.iter().map(Target::host_name).collect(),
        };
        ClientTls { ca: self.authorities(section, "ca", &names), client_cert, server_name: named }
    }

    /// Reads `store.tls`, which only a URL with TLS may have.
    pub(super) fn store_tls(&mut self, store: &ConfigSection<'_>, url: &RedisUrl) -> ClientTls {
        let Some(field) = store.get("tls") else { return ClientTls::default() };
        if !url.is_tls() {
            let reason = "needs `rediss://`, `rediss-sentinel://` or `rediss-cluster://`";
            self.note_at(&field, reason);
            return ClientTls::default();
        }
        let Some(section) = self.section_at(store, "tls") else { return ClientTls::default() };
        let is_pair = ["cert", "key"].iter().any(|key| section.get(key).is_some());
        let named = self.read_by(&section, "server_name", server_name);
        let names = named.as_deref().map_or_else(|| url.hosts(), |name| vec![name]);
        ClientTls {
            ca: self.authorities(&section, "ca", &names),
            client_cert: if is_pair { self.pair(&section) } else { None },
            server_name: named,
        }
    }

    /// Reads `cert` and `key` of a section, both of which it must have.
    pub(super) fn pair(&mut self, section: &ConfigSection<'_>) -> Option<KeyPair> {
        let mut file = |key: &str| {
            let field = self.required(section, key, &format!(", as in `{key}: {key}.pem`"))?;
            let file = self.file(&field)?;
            Some((field, file))
        };
        let (cert, key) = (file("cert"), file("key"));
        let ((cert_field, cert), (key_field, key)) = (cert?, key?);
        self.checked(KeyPair { cert, key }, &cert_field, &key_field)
    }

    /// Returns the pair if its certificate and its key can be read and belong together.
    fn checked(&mut self, pair: KeyPair, cert: &Field<'_>, key: &Field<'_>) -> Option<KeyPair> {
        if self.is_offline {
            return Some(pair);
        }
        if let Err(error) = tls::certificates(&pair.cert) {
            self.refuse(cert, &error.reason);
            return None;
        }
        let (chain, secret) = match pair.load() {
            Ok(loaded) => loaded,
            Err(TlsError { reason, .. }) => {
                let text = fs::read_to_string(&pair.key).unwrap_or_default();
                if text.contains("ENCRYPTED") {
                    self.refuse(key, "holds a private key that is encrypted; decrypt it");
                } else {
                    self.refuse(key, &reason);
                }
                return None;
            }
        };
        match CertifiedKey::from_der(chain, secret, &default_provider()) {
            Ok(_) => Some(pair),
            Err(rustls::Error::InvalidCertificate(_)) => {
                self.refuse(cert, "holds a certificate that is no X.509");
                None
            }
            Err(rustls::Error::InconsistentKeys(_)) => {
                let reason = if cert.node.place == key.node.place {
                    "holds a key that is not the one of its first certificate"
                } else {
                    "holds a key that is not the one of the certificate in `cert`"
                };
                self.refuse(key, reason);
                None
            }
            Err(_) => {
                self.refuse(key, "holds a private key of a kind that cannot be used");
                None
            }
        }
    }

    /// Reads a key that names a file with certificates of authorities, for servers with these `names`.
    fn authorities(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        names: &[&str],
    ) -> Option<PathBuf> {
        let field = section.get(key)?;
        let file = self.file(&field)?;
        if self.is_offline {
            return Some(file);
        }
        match tls::certificates(&file) {
            Err(error) => self.refuse(&field, &error.reason),
            Ok(all) => {
                match RootCertStore::empty().add_parsable_certificates(all.iter().cloned()) {
                    (0, _) => {
                        self.refuse(&field, "holds no certificate that an authority can have")
                    }
                    _ => {
                        let flaw = tls::flaw(&all, names, UnixTime::now());
                        self.flaws
                            .extend(flaw.map(|why| format!("`{}` cannot work: {why}", field.path)));
                        return Some(file);
                    }
                }
            }
        }
        None
    }

    /// Reads the path of a file that exists. A relative path starts at the directory of the configuration.
    fn file(&mut self, field: &Field<'_>) -> Option<PathBuf> {
        let (directory, is_offline) = (self.directory.clone(), self.is_offline);
        self.scalar(field, |text| {
            if text.is_empty() {
                return Err("names no file".to_owned());
            }
            let file = directory.join(text);
            if is_offline {
                return Ok(file);
            }
            let found = file.metadata().map_err(|error| {
                if Path::new(text).is_absolute() {
                    format!("cannot be read: {error}")
                } else {
                    let whole = path::absolute(&file).unwrap_or_else(|_| file.clone());
                    format!("cannot be read as `{}`: {error}", whole.display())
                }
            })?;
            if !found.is_file() {
                return Err("is no file".into());
            }
            if found.len() > MAX_FILE {
                return Err(format!("is larger than {}", Bytes::from(MAX_FILE)));
            }
            Ok(file)
        })
    }

    fn refuse(&mut self, field: &Field<'_>, reason: &str) {
        let written = field.scalar().map_or("", |scalar| &scalar.written);
        self.note_at(field, format!("`{written}` {reason}"));
    }
}

fn server_name(text: &str) -> Result<String, &'static str> {
    match ServerName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("is no host name; write it without scheme and port"),
    }
}
