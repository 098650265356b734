//! `upstream` and `upstreams`, and the limiters that they and routes name.

use super::{MAX_TIMEOUT, UPSTREAM};
use crate::{
    config::{
        Limiter, Upstream,
        reader::{Field, NOT_YET, Reader, Section, find, join, span},
        yaml::{self, Node, Value},
    },
    upstream::{Target, Timeouts},
};
use std::time::Duration;

impl Reader {
    pub(super) fn upstreams(&mut self, root: &Section<'_>, limiters: &[Limiter]) -> Vec<Upstream> {
        let (short, long) = (root.get("upstream"), root.get("upstreams"));
        let timeouts = Timeouts::default();
        match (short, long) {
            (Some(short), None) => {
                let target = self.scalar(&short, Target::parse);
                let named = |target| Upstream {
                    name: "default".into(),
                    target,
                    timeouts,
                    limiters: Vec::new(),
                };
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
        let mut upstream = Upstream {
            name: key.name.clone(),
            target: Target::default(),
            timeouts: Timeouts::default(),
            limiters: Vec::new(),
        };
        let field = Field { path, node };
        if let Value::Scalar(_) | Value::Broken = node.value {
            upstream.target = self.scalar(&field, Target::parse).unwrap_or_default();
            return upstream;
        }
        let Some(section) = self.section(&field, &UPSTREAM) else { return upstream };
        match section.get("url") {
            Some(url) => {
                upstream.target = self.scalar(&url, Target::parse).unwrap_or_default();
            }
            None => self.note(section.place, &join(&section.path, "url"), "is missing"),
        }
        let limit = |text: &str| span(text, Duration::from_millis(1), MAX_TIMEOUT);
        let timeouts = &mut upstream.timeouts;
        timeouts.connect = self.get(&section, "connect_timeout", timeouts.connect, limit);
        timeouts.response = self.get(&section, "response_timeout", timeouts.response, limit);
        upstream.limiters = self.used_limiters(&section, limiters);
        upstream
    }

    /// Indices of the limiters that a section names, each once.
    pub(super) fn used_limiters(
        &mut self,
        section: &Section<'_>,
        limiters: &[Limiter],
    ) -> Vec<usize> {
        let Some(field) = section.get("limiters") else { return Vec::new() };
        let Some(items) = self.list(&field) else { return Vec::new() };
        let mut used = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            if let Value::Map(_) = node.value {
                self.note_at(
                    &item,
                    format!("a limiter with a cost is {NOT_YET}; write its name alone"),
                );
                continue;
            }
            let found = self.scalar(&item, |name| find(name, "limiter", limiters, |l| &l.name));
            let Some(found) = found else { continue };
            if used.contains(&found) {
                self.note_at(&item, "named twice; a request is charged once per limiter");
                continue;
            }
            used.push(found);
        }
        used
    }
}
