//! Reads `accounts` of an upstream. Never quotes the value of a header.

use crate::{
    config::{
        accounts::{Account, Accounts, StatusClass},
        keys::{ACCOUNT, UPSTREAM},
        limiter::{Charge, LimiterConfig},
        reader::{ConfigReader, ConfigSection, Field},
        settings::Upstream,
        yaml::YamlValue,
    },
    throttle::Condition,
    upstream::Target,
};

impl ConfigReader {
    /// Reads `accounts`, `park` and `park_for` of an upstream.
    pub(super) fn accounts(&mut self, section: &ConfigSection<'_>) -> Option<Accounts> {
        let park = self.parking(section);
        let park_for = self.read_or_default(section, "park_for");
        let Some(field) = section.get("accounts") else {
            for key in ["park", "park_for"] {
                if let Some(field) = section.get(key) {
                    self.note_at(&field, "is for upstreams with `accounts`, and this one has none");
                }
            }
            return None;
        };
        if let YamlValue::Map(_) = field.node.value {
            self.note_at(&field, "must be a list, as in `[{ name: a, headers: { ... } }]`");
            return None;
        }
        let items = self.list(&field)?;
        if let Some([least, most]) = UPSTREAM.bounds_without("accounts", items.len()) {
            self.note_at(&field, format!("must hold {least} to {most} accounts"));
            return None;
        }
        let mut all: Vec<Account> = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let Some(account) = self.account(&item) else { continue };
            if all.iter().any(|other| other.name == account.name) {
                self.note_at(&item, format!("`{}` is named twice", account.name));
                continue;
            }
            all.push(account);
        }
        Some(Accounts { all, park: Accounts::parking(park), park_for })
    }

    /// Reads `park`: the conditions of answers by which an account is rejected.
    fn parking(&mut self, section: &ConfigSection<'_>) -> Vec<Condition> {
        let own =
            self.read_list(section, "park", |reader, item| reader.scalar(item, Condition::parse));
        if section.get("park").is_some() {
            return own;
        }
        Accounts::PARKS.iter().filter_map(|text| Condition::parse(text).ok()).collect()
    }

    fn account(&mut self, item: &Field<'_>) -> Option<Account> {
        let section = self.section(item, &ACCOUNT)?;
        let how = ", as in `- { name: bot-1, headers: { authorization: \"Bearer ${file:secrets/bot1}\" } }`";
        let name = self.require_by(&section, "name", how, account_name);
        let quota = self.read_by(&section, "quota", account_name);
        let headers = self.values(&section, "headers");
        let target = self.read_by(&section, "url", Target::parse);
        let after = self.read_or_default(&section, "after");
        let on =
            self.read_list(&section, "on", |reader, item| reader.scalar(item, StatusClass::parse));
        let name = name?;
        let quota = quota.unwrap_or_else(|| name.clone());
        Some(Account { name, quota, headers, target, upstream: 0, after, on })
    }

    /// Finds limiters whose keys name the account of a request, where the upstream of a route has no accounts.
    pub(super) fn find_keys_of_accounts(
        &mut self,
        section: &ConfigSection<'_>,
        charges: &[Charge],
        limiters: &[LimiterConfig],
        upstream: &Upstream,
    ) {
        if upstream.accounts.is_some() {
            return;
        }
        for charge in charges {
            let limiter = &limiters[charge.limiter];
            if limiter.key.as_ref().is_some_and(|key| key.names_account()) {
                let reason = format!(
                    "has the limiter `{}`, whose key names the account of a request, and the upstream `{}` has no \
                     `accounts`",
                    limiter.name, upstream.name
                );
                self.note(section.place, &section.path, reason);
            }
        }
    }
}

/// Gives each account with a URL of its own an upstream with the settings of the one that it belongs to. Routes cannot name it.
pub(super) fn add_upstreams(upstreams: &mut Vec<Upstream>) {
    for i in 0..upstreams.len() {
        let Some(mut accounts) = upstreams[i].accounts.take() else { continue };
        for account in &mut accounts.all {
            account.upstream = i;
            if let Some(target) = account.target.clone() {
                let name = format!("{}/{}", upstreams[i].name, account.name);
                account.upstream = upstreams.len();
                upstreams.push(Upstream { name, targets: vec![target], ..upstreams[i].clone() });
            }
        }
        upstreams[i].accounts = Some(accounts);
    }
}

/// Reads the name of an account or of a quota, which is a part of keys, labels and header fields.
fn account_name(text: &str) -> Result<String, &'static str> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !text.is_empty() && text.len() <= 64 && text.chars().all(is_fit) {
        Ok(text.to_owned())
    } else {
        Err("is no name: it has 1 to 64 letters, digits, `_`, `.` and `-`")
    }
}
