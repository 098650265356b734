//! `upstream` and `upstreams`, and the limiters that they and routes name.

use super::{CHARGE, MAX_TIMEOUT, UPSTREAM};
use crate::{
    algorithm::Algorithm,
    config::{
        Charge, Limiter, Upstream,
        reader::{Field, Reader, Section, find, join, span},
        unit,
        yaml::{self, Node, Value},
    },
    key::Cost,
    upstream::{ClientTls, Target, Timeouts, headers::Rules},
};
use std::time::Duration;

impl Reader {
    pub(super) fn upstreams(&mut self, root: &Section<'_>, limiters: &[Limiter]) -> Vec<Upstream> {
        let (short, long) = (root.get("upstream"), root.get("upstreams"));
        match (short, long) {
            (Some(short), None) => {
                let target = self.scalar(&short, Target::parse);
                let named = |target| Upstream { targets: vec![target], ..plain("default") };
                target.map(named).into_iter().collect()
            }
            (None, Some(long)) => {
                let Some(section) = self.map(&long) else { return Vec::new() };
                if section.entries.is_empty() {
                    self.note_at(&long, "names no upstream");
                }
                let named = section.entries.iter();
                named.map(|(key, node)| self.upstream(&section.path, key, node, limiters)).collect()
            }
            (Some(_), Some(long)) => {
                self.note_at(&long, "stands beside `upstream`, its short form; keep one of them");
                Vec::new()
            }
            (None, None) => {
                let reason = "is missing: where requests go, as in `upstream: https://api.example`";
                self.note(root.place, "upstream", reason);
                Vec::new()
            }
        }
    }

    fn upstream(
        &mut self,
        path: &str,
        key: &yaml::Key,
        node: &Node,
        limiters: &[Limiter],
    ) -> Upstream {
        let path = join(path, &key.name);
        self.name(&path, key);
        let mut upstream = plain(&key.name);
        let field = Field { path, node };
        if let Value::Scalar(_) | Value::Broken = node.value {
            upstream.targets = vec![self.scalar(&field, Target::parse).unwrap_or_default()];
            return upstream;
        }
        let Some(section) = self.section(&field, &UPSTREAM) else { return upstream };
        match section.get("url") {
            Some(url) => {
                upstream.targets = vec![self.scalar(&url, Target::parse).unwrap_or_default()];
            }
            None => self.note(section.place, &join(&section.path, "url"), "is missing"),
        }
        let limit = |text: &str| span(text, Duration::from_millis(1), MAX_TIMEOUT);
        let timeouts = &mut upstream.timeouts;
        timeouts.connect = self.get(&section, "connect_timeout", timeouts.connect, limit);
        timeouts.response = self.get(&section, "response_timeout", timeouts.response, limit);
        upstream.limiters = self.charges(&section, limiters);
        upstream
    }

    /// The limiters that a section names, each once.
    pub(super) fn charges(&mut self, section: &Section<'_>, limiters: &[Limiter]) -> Vec<Charge> {
        let Some(field) = section.get("limiters") else { return Vec::new() };
        if let Value::Map(_) = field.node.value {
            self.note_at(&field, "must be a list, as in `[a, { limiter: b, cost: 5 }]`");
            return Vec::new();
        }
        let Some(items) = self.list(&field) else { return Vec::new() };
        let mut charges: Vec<Charge> = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let Some(charge) = self.charge(&item, limiters) else { continue };
            if charges.iter().any(|other| other.limiter == charge.limiter) {
                self.note_at(&item, "named twice; a request is charged once per limiter");
                continue;
            }
            charges.push(charge);
        }
        charges
    }

    /// A limiter's name, or a map with a cost.
    fn charge(&mut self, item: &Field<'_>, limiters: &[Limiter]) -> Option<Charge> {
        let named = |name: &str| {
            if unit::rate(name).is_ok() {
                let reason = "is a rate; write it under `limiters:` at the top, as in `NAME: 5/s`, and \
                              its name here";
                return Err(reason.into());
            }
            find(name, "limiter", limiters, |limiter| &limiter.name)
        };
        let Value::Map(entries) = &item.node.value else {
            return Some(Charge { limiter: self.scalar(item, named)?, cost: Cost::ONE });
        };
        if let [(key, node)] = &**entries
            && limiters.iter().any(|limiter| limiter.name == key.name)
            && !CHARGE.now.contains(&key.name.as_str())
        {
            let cost = match &node.value {
                Value::Scalar(scalar) if scalar.written.parse::<u32>().is_ok() => &scalar.written,
                _ => "5",
            };
            let reason = format!("a cost is written `{{ limiter: {}, cost: {cost} }}`", key.name);
            self.note_at(item, reason);
            return None;
        }
        let section = self.section(item, &CHARGE)?;
        let cost = section.get("cost").map(|field| (self.scalar(&field, Cost::parse), field));
        let Some(name) = section.get("limiter") else {
            let path = join(&section.path, "limiter");
            self.note(section.place, &path, "is missing: the name of the limiter that is charged");
            return None;
        };
        let found = self.scalar(&name, named)?;
        let Some((cost, field)) = cost else {
            return Some(Charge { limiter: found, cost: Cost::ONE });
        };
        let cost = cost?;
        if let Some(reason) = never(&cost, &limiters[found]) {
            self.note_at(&field, reason);
        }
        Some(Charge { limiter: found, cost })
    }
}

/// With every default, and nowhere yet.
fn plain(name: &str) -> Upstream {
    Upstream {
        name: name.to_owned(),
        targets: vec![Target::default()],
        timeouts: Timeouts::default(),
        pool_size: 1024,
        http2: false,
        tls: ClientTls::default(),
        preserve_host: false,
        forwarded: false,
        headers: Rules::default(),
        limiters: Vec::new(),
    }
}

/// Why a limiter never takes a cost.
fn never(cost: &Cost, limiter: &Limiter) -> Option<String> {
    if let [Algorithm::Concurrency(_)] = &*limiter.algorithms {
        let reason = "a concurrency limiter counts requests, each as one; leave the cost out";
        return (*cost != Cost::ONE).then(|| reason.into());
    }
    let (Cost::Fixed(cost), most) = (cost, limiter.capacity()) else { return None };
    (*cost > most).then(|| {
        format!(
            "a cost of {cost} is more than `{}` can ever give at once, which is {most}",
            limiter.name
        )
    })
}
