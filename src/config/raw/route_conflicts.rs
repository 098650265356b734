//! Finds routes that take the same requests with neither more specific than the other. Reads no keys.

use crate::{
    config::{
        reader::{ConfigReader, Field},
        settings::Route,
        yaml::{YamlEntry, YamlValue},
    },
    path::{PathTemplate, Paths, Relation, TemplateSegment},
};
use http::Method;
use std::collections::BTreeMap;

/// The templates of routes in a trie over their segments, to find those that a path can match together with another one
/// without a look at each of them. Node 0 is the root.
#[derive(Default)]
struct KnownTemplates {
    nodes: Vec<KnownNode>,
}

#[derive(Default)]
struct KnownNode {
    children: BTreeMap<TemplateSegment, usize>,
    /// The routes whose template ends here, by index.
    routes: Vec<usize>,
}

/// A route that was read, and its place in the file.
pub(super) struct ReadRoute<'n> {
    pub(super) route: Route,
    pub(super) field: Field<'n>,
}

impl ConfigReader {
    /// Notes a mistake if an earlier route takes the same requests as `route`, or has its name.
    pub(super) fn check_against(
        &mut self,
        routes: &[ReadRoute<'_>],
        route: &Route,
        field: &Field<'_>,
        paths: &Paths,
    ) {
        let find = |is_it: &dyn Fn(&Route) -> bool| {
            let found = routes.iter().find(|other| is_it(&other.route))?;
            Some((&found.field.path, found.field.node.place.line))
        };
        if let Some((other, line)) = find(&|other| tie(other, route)) {
            let reason = format!(
                "matches the same requests as {} in line {}, and neither is more specific; \
                 change its {}, host or methods",
                other,
                line,
                if route.path.template().is_some() { "path" } else { "suffix" },
            );
            self.note_at(field, reason);
        } else if let Some((other, line)) =
            find(&|other| paths.may_fold() && differ_in_case(other, route))
        {
            let reason = format!(
                "differs from {} in line {} only in upper and lower case, and has other limiters; say whether the \
                 upstream tells them apart, with `paths: {{ fold_case: off }}`, or give both the same limiters",
                other, line
            );
            self.note_at(field, reason);
        } else if let Some((other, line)) = find(&|other| other.name == route.name) {
            let name = if is_written(field, &route.name) {
                format!("`{}` ", route.name)
            } else {
                String::new()
            };
            let reason = format!(
                "has the name {name}of {} in line {}; give it a `name`, which labels metrics and logs",
                other, line
            );
            self.note_at(field, reason);
        }
    }

    /// Notes a mistake for each route whose path crosses that of an earlier one, as `/a/{x}` crosses `/{y}/b`: neither is
    /// more literal for `/a/b`. A route for exactly the paths that match both decides it.
    pub(super) fn check_crossings(&mut self, routes: &[ReadRoute<'_>]) {
        let mut known = KnownTemplates { nodes: vec![KnownNode::default()] };
        let all = routes.iter().enumerate();
        let all = all.filter_map(|(i, own)| Some((i, &**own.route.path.template()?)));
        let all: Vec<_> = all.collect();
        for (i, template) in &all {
            known.add(template, *i);
        }
        for (i, template) in all {
            let mut near = Vec::new();
            known.overlapping(0, template.segments(), &mut near);
            let ReadRoute { route, field } = &routes[i];
            let of = |other: usize| routes[other].route.path.template().map(|template| &**template);
            let is_decided = |other: usize, theirs: &PathTemplate| {
                near.iter().any(|third| {
                    let is_meeting = |own: &PathTemplate| own.is_meeting_of(template, theirs);
                    of(*third).is_some_and(is_meeting)
                        && takes_all_of(&routes[*third].route, route, &routes[other].route)
                })
            };
            let crosses = |other: &&usize| {
                let theirs = of(**other).filter(|_| **other < i);
                theirs.is_some_and(|theirs| {
                    template.relation(theirs) == Relation::Crossing
                        && have_common_requests(route, &routes[**other].route)
                        && !is_decided(**other, theirs)
                })
            };
            if let Some(other) = near.iter().filter(crosses).min() {
                let other = &routes[*other].field;
                let reason = format!(
                    "has a path that crosses that of {} in line {}: some paths match both, and neither is more literal; add a \
                     route for the paths that match both, or change one of them",
                    other.path, other.node.place.line
                );
                self.note_at(field, reason);
            }
        }
    }
}

// === impl KnownTemplates ===

impl KnownTemplates {
    fn add(&mut self, template: &PathTemplate, route: usize) {
        let mut at = 0;
        for segment in template.segments() {
            let new = self.nodes.len();
            at = *self.nodes[at].children.entry(segment.clone()).or_insert(new);
            if at == new {
                self.nodes.push(KnownNode::default());
            }
        }
        self.nodes[at].routes.push(route);
    }

    /// Finds the routes below a node that a path with these segments can match. The descent is as deep as a template.
    fn overlapping(&self, at: usize, segments: &[TemplateSegment], found: &mut Vec<usize>) {
        let node = &self.nodes[at];
        let Some((segment, others)) = segments.split_first() else {
            return found.extend(&node.routes);
        };
        let mut descend = |own: &TemplateSegment, child: usize| match (own, segment) {
            (TemplateSegment::Rest, _) => found.extend(&self.nodes[child].routes),
            (_, TemplateSegment::Rest) => self.all_below(child, found),
            _ if own.overlaps(segment) => self.overlapping(child, others, found),
            _ => {}
        };
        if let TemplateSegment::Literal(_) = segment {
            // At most one of thousands of literals is the same.
            if let Some((own, child)) = node.children.get_key_value(segment) {
                descend(own, *child);
            }
            let first = TemplateSegment::Parameter(Box::default());
            node.children.range(first..).for_each(|(own, child)| descend(own, *child));
        } else {
            node.children.iter().for_each(|(own, child)| descend(own, *child));
        }
    }

    fn all_below(&self, at: usize, found: &mut Vec<usize>) {
        found.extend(&self.nodes[at].routes);
        for child in self.nodes[at].children.values() {
            self.all_below(*child, found);
        }
    }
}

/// Whether the name of a route is written in the file itself, so that a message may quote it. A name from `${...}` may be
/// secret.
fn is_written(route: &Field<'_>, name: &str) -> bool {
    let YamlValue::Map(entries) = &route.node.value else { return false };
    entries.iter().any(|YamlEntry { key, node }| match &node.value {
        YamlValue::Scalar(scalar) => {
            matches!(&*key.name, "name" | "suffix" | "path") && scalar.written == name
        }
        _ => false,
    })
}

/// Whether a request could match both routes, with neither of them more specific.
fn tie(a: &Route, b: &Route) -> bool {
    let within = |a: &Route, b: &Route| a.methods.iter().all(|method| b.methods.contains(method));
    let overlap = match (a.methods.is_empty(), b.methods.is_empty()) {
        (true, true) => true,
        (false, false) => {
            let shared = a.methods.iter().any(|method| b.methods.contains(method));
            // A proper subset is the more specific one.
            shared && (within(a, b) == within(b, a))
        }
        _ => false,
    };
    a.path.takes_same(&b.path) && a.host == b.host && overlap
}

/// Whether an origin that folds case serves the requests of both routes as the same, and their limiters differ.
fn differ_in_case(a: &Route, b: &Route) -> bool {
    if a.path.takes_same(&b.path) || !a.path.is_folded(&b.path) || a.covers(b) && b.covers(a) {
        return false;
    }
    tie(&Route { path: b.path.clone(), ..a.clone() }, b)
}

/// Adds HEAD to routes for GET, because a HEAD is a GET without the body (RFC 9110 section 9.3.2). A route does not get it
/// if another route with the same suffix or path names HEAD.
pub(super) fn add_head(routes: &mut [Route]) {
    let names_head = |route: &Route, by: &Route| {
        by.path.takes_same(&route.path)
            && (by.host.is_none() || by.host == route.host)
            && by.methods.contains(&Method::HEAD)
    };
    let takes_it: Vec<bool> = routes
        .iter()
        .map(|route| {
            route.methods.contains(&Method::GET)
                && !routes.iter().any(|other| names_head(route, other))
        })
        .collect();
    for (route, _) in routes.iter_mut().zip(takes_it).filter(|(_, takes_it)| *takes_it) {
        route.methods.push(Method::HEAD);
    }
}

/// Whether some request has a method and a host for both routes.
fn have_common_requests(a: &Route, b: &Route) -> bool {
    let methods = a.methods.is_empty()
        || b.methods.is_empty()
        || a.methods.iter().any(|method| b.methods.contains(method));
    methods && (a.host.is_none() || b.host.is_none() || a.host == b.host)
}

/// Whether `third` takes each method and host that both `a` and `b` take.
fn takes_all_of(third: &Route, a: &Route, b: &Route) -> bool {
    let common = match (a.methods.is_empty(), b.methods.is_empty()) {
        (true, _) => b.methods.clone(),
        (_, true) => a.methods.clone(),
        _ => a.methods.iter().filter(|method| b.methods.contains(method)).cloned().collect(),
    };
    let methods = third.methods.is_empty()
        || !common.is_empty() && common.iter().all(|method| third.methods.contains(method));
    methods && (third.host.is_none() || third.host == a.host.clone().or(b.host.clone()))
}
