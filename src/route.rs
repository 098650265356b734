//! Finds the route of a request: the most literal template of its whole path, or else the longest suffix that its path ends
//! in; then the most specific route.
//! The cost depends on the length of the path, not on the number of routes.

mod captured;
mod templates;

use crate::{
    config,
    path::{PathRule, Paths, Suffix},
    probing::ProbingTable,
};
use ahash::{HashMap, RandomState};
use captured::{Captured, CapturingRoutes};
use http::Method;
use smallvec::SmallVec;
use std::{cmp::Reverse, fmt};
use templates::TemplateTrie;

/// All routes of a configuration, indexed by the suffixes of their paths.
#[derive(Debug)]
pub struct Table {
    /// A trie over the segments of suffixes, last segment first. Node 0 is the root.
    nodes: Vec<TrieNode>,
    hasher: RandomState,
    /// Suffixes of characters, such as `.json`, in a map for each length, the longest first.
    characters: Vec<(usize, Suffixes)>,
    any: Candidates,
    paths: Paths,
    /// The routes with a `path`; `None` if there are none.
    templates: Option<Box<TemplateTrie>>,
    /// The routes whose keys or costs are parameters of their path.
    capturing: CapturingRoutes,
    /// Whether a route is for one host alone.
    names_hosts: bool,
    /// The same routes with their paths in small letters. `None` if no path has a capital or no origin may fold case.
    folded: Option<Box<Table>>,
}

/// Origins read the path of a request in several ways, and the routes of these readings have different limits. The gateway
/// answers 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ambiguous {
    /// The part of the path that origins read differently, and the key under `paths` that would decide it.
    decided_by: Option<(&'static str, &'static str)>,
}

type Suffixes = HashMap<Text, Candidates>;
/// A segment. Most have at most 16 bytes and are stored in place, so that comparing one of thousands reads no further cache
/// line.
type Text = SmallVec<[u8; 16]>;
/// The routes with one suffix. Most suffixes have a single route, which is stored in place.
type Candidates = SmallVec<[RouteCandidate; 1]>;

#[derive(Debug, Default)]
struct TrieNode {
    children: ProbingTable<Box<[Option<Branch>]>>,
    /// Routes whose whole suffix leads to this node, the more specific ones first.
    here: Candidates,
}

/// A segment and its child. It takes 32 bytes, so that a cache line holds two.
#[derive(Debug)]
#[repr(align(32))]
struct Branch {
    segment: Text,
    child: Child,
}

/// The node or the route to which a segment leads.
#[derive(Debug, Clone, Copy)]
enum Child {
    Node(u32),
    /// A route that takes every method and host, where no suffix is longer. Most suffixes end so, and need no look at a node.
    Route(u32),
}

/// The parts of a request by which its route is found: its host is without port, and its path without query.
#[derive(Clone, Copy)]
struct AskedRoute<'r> {
    method: &'r Method,
    host: Option<&'r str>,
    path: &'r str,
}

#[derive(Debug)]
struct RouteCandidate {
    methods: Box<[Method]>,
    host: Option<Box<str>>,
    route: usize,
}

// === impl Table ===

impl Table {
    /// Makes a table for origins that read paths as `paths` says. It answers with indices into `routes`.
    pub fn new(routes: &[config::Route], paths: Paths) -> Self {
        Self::among(routes, paths, |_| true)
    }

    /// Makes a table of those routes for which `takes` is true. It answers with indices into `routes`.
    pub fn among(
        routes: &[config::Route],
        paths: Paths,
        takes: impl Fn(&config::Route) -> bool,
    ) -> Self {
        let mut table = Self::of(routes, paths, false, &takes);
        if paths.may_fold() && routes.iter().any(|route| route.path.is_cased()) {
            table.folded = Some(Box::new(Self::of(routes, paths, true, &takes)));
        }
        table
    }

    /// Makes the table of the routes as they are, or with their paths in small letters.
    fn of(
        routes: &[config::Route],
        paths: Paths,
        folds: bool,
        takes: &impl Fn(&config::Route) -> bool,
    ) -> Self {
        let mut table = Self {
            nodes: vec![TrieNode::default()],
            hasher: RandomState::new(),
            characters: Vec::new(),
            any: Candidates::new(),
            paths,
            templates: None,
            capturing: CapturingRoutes::new(routes),
            names_hosts: routes.iter().any(|route| route.host.is_some()),
            folded: None,
        };
        for (index, route) in routes.iter().enumerate().filter(|(_, route)| takes(route)) {
            let methods = route.methods.clone().into();
            let host = route.host.clone().map(Into::into);
            let candidate = RouteCandidate { methods, host, route: index };
            match &route.path {
                PathRule::Suffix(suffix) if folds => table.place(&suffix.folded()).push(candidate),
                PathRule::Suffix(suffix) => table.place(suffix).push(candidate),
                PathRule::Descriptor => {}
                PathRule::Template(template) => {
                    let trie = table.templates.get_or_insert_with(|| TemplateTrie::new().into());
                    if folds {
                        trie.add(&template.folded(), candidate);
                    } else {
                        trie.add(template, candidate);
                    }
                }
            }
        }
        if let Some(templates) = &mut table.templates {
            templates.finish();
        }
        table.characters.sort_by_key(|(length, _)| Reverse(*length));
        let lists = table.nodes.iter_mut().map(|node| &mut node.here);
        let characters = table.characters.iter_mut().flat_map(|(_, map)| map.values_mut());
        for list in lists.chain(characters).chain([&mut table.any]) {
            list.sort_by_key(RouteCandidate::rank);
        }
        table.shorten();
        table
    }

    /// Replaces each child node that has one unrestricted route and no children by that route, which saves a look at the node
    /// for each request. Then spreads each table of children, so that most lookups find their segment at the first place.
    fn shorten(&mut self) {
        let ends = self.nodes.iter().map(|node| match &node.here[..] {
            [only] if only.takes_all() && node.children.is_empty() => {
                Some(Child::Route(index(only.route)))
            }
            _ => None,
        });
        let ends: Vec<_> = ends.collect();
        let hasher = &self.hasher;
        for children in self.nodes.iter_mut().map(|node| &mut node.children) {
            for branch in children.iter_mut() {
                if let Child::Node(at) = branch.child
                    && let Some(end) = ends[at as usize]
                {
                    branch.child = end;
                }
            }
            if !children.is_empty() {
                children.spread(|branch| hasher.hash_one(&branch.segment[..]));
            }
        }
    }

    fn place(&mut self, suffix: &Suffix) -> &mut Candidates {
        match suffix {
            Suffix::Any => &mut self.any,
            Suffix::Segments(bytes) => {
                let mut at = 0;
                for segment in bytes[1..].rsplit(|byte| *byte == b'/') {
                    at = match self.child(at, segment) {
                        Some(Child::Node(known)) => known as usize,
                        // Only whole tables are shortened.
                        Some(Child::Route(_)) | None => self.grow(at, segment),
                    };
                }
                &mut self.nodes[at].here
            }
            Suffix::Characters(bytes) => {
                let known = self.characters.iter().position(|(length, _)| *length == bytes.len());
                let i = known.unwrap_or_else(|| {
                    self.characters.push((bytes.len(), Suffixes::default()));
                    self.characters.len() - 1
                });
                self.characters[i].1.entry(Text::from_slice(bytes)).or_default()
            }
        }
    }

    /// Adds a child for `segment` to the node at `at`, and returns its index.
    fn grow(&mut self, at: usize, segment: &[u8]) -> usize {
        let (new, hasher) = (self.nodes.len(), &self.hasher);
        let branch = Branch { segment: segment.into(), child: Child::Node(index(new)) };
        let hash = |branch: &Branch| hasher.hash_one(&branch.segment[..]);
        self.nodes[at].children.insert(branch, hash);
        self.nodes.push(TrieNode::default());
        new
    }

    /// Looks up the child for `segment` of the node at `at`.
    fn child(&self, at: usize, segment: &[u8]) -> Option<Child> {
        let (children, hash) = (&self.nodes[at].children, self.hasher.hash_one(segment));
        let place = children.find(hash, |branch| branch.segment[..] == *segment)?;
        children.get(place).map(|branch| branch.child)
    }

    /// Whether the host of a request makes a difference, because a route is for one host alone.
    pub fn names_hosts(&self) -> bool {
        self.names_hosts
    }

    /// Finds the route for the normal form of a path; `host` is without port and `path` without query, as the client sent them.
    pub fn find(&self, method: &Method, host: Option<&str>, path: &str) -> Option<usize> {
        if self.is_no_path(path) {
            pick(&self.any, method, host)
        } else {
            self.find_reading(method, host, &self.paths.normal(path))
        }
    }

    /// Finds a route for all readings of a path: one that `covers` the routes of the others. Without this, a client could
    /// escape the limiter of `/search` by a spelling that only the origin reads as `/search`.
    ///
    /// # Errors
    ///
    /// [`Ambiguous`] if no route among those of the readings covers the others, or if the readings have different values
    /// for the keys of their limiters.
    pub fn find_covering(
        &self,
        method: &Method,
        host: Option<&str>,
        path: &str,
        covers: impl Fn(usize, usize) -> bool,
    ) -> Result<Option<usize>, Ambiguous> {
        if self.is_no_path(path) {
            return Ok(pick(&self.any, method, host));
        }
        let (normal_form, is_sure) = self.paths.read(path);
        let Some(own) = self.find_reading(method, host, &normal_form) else { return Ok(None) };
        // An origin that folds case takes a path in small letters for a route with capitals.
        if is_sure && self.folded.is_none() {
            return Ok(Some(own));
        }
        let asked = AskedRoute { method, host, path };
        let of = |paths: &Paths| self.covering(paths, asked, own, &normal_form, &covers);
        if let Some(route) = of(&self.paths) {
            return Ok(Some(route));
        }
        let mut keys = self.paths.narrower();
        let decides = keys.find(|(_, _, paths)| of(paths).is_some());
        Err(Ambiguous { decided_by: decides.map(|(what, key, _)| (what, key)) })
    }

    /// Whether the target is the `*` of OPTIONS, which no template matches.
    fn is_no_path(&self, path: &str) -> bool {
        self.templates.is_some() && path == "*"
    }

    /// Finds the route that covers the routes of all readings. The route `own` of the normal form is one of them.
    fn covering(
        &self,
        paths: &Paths,
        asked: AskedRoute<'_>,
        own: usize,
        normal_form: &[u8],
        covers: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let AskedRoute { method, host, path } = asked;
        let mut all = SmallVec::<[(usize, Captured<'_>); 4]>::new();
        let mut add = |route: Option<usize>, reading: &[u8]| {
            let Some(route) = route else { return };
            let captured = self.capturing.of(route, reading, paths);
            if !all.iter().any(|known| *known == (route, captured.clone())) {
                all.push((route, captured));
            }
        };
        add(Some(own), normal_form);
        for (reading, is_folded) in paths.readings(path) {
            let table = self.folded.as_deref().filter(|_| is_folded).unwrap_or(self);
            let found = table.find_reading(method, host, &reading);
            let specific = found.filter(|route| !self.any.iter().any(|any| any.route == *route));
            // A reading may itself be spelled in an unusual way. If it has no route of its own, its normal form decides; a
            // parameter of a template takes any spelling, so the normal form counts as well.
            if specific.is_none() || self.templates.is_some() {
                let normal = paths.normal_of(&reading, is_folded);
                add(table.find_reading(method, host, &normal), &normal);
            }
            add(specific, &reading);
        }
        if let Some(folded) = self.folded.as_deref().filter(|_| paths.may_fold()) {
            let reading = paths.normal_of(path.as_bytes(), true);
            add(folded.find_reading(method, host, &reading), &reading);
        }
        let covers_all = |(one, of_one): &&(usize, Captured<'_>)| {
            all.iter().all(|(other, of_other)| covers(*one, *other) && of_one == of_other)
        };
        all.iter().find(covers_all).map(|(route, _)| *route)
    }

    /// Finds the route for one reading: that of a template, or of the longest suffix, whether of segments or of characters.
    fn find_reading(&self, method: &Method, host: Option<&str>, path: &[u8]) -> Option<usize> {
        if let Some(templates) = &self.templates
            && let Some(route) = templates.find(method, host, path)
        {
            return Some(route);
        }
        let (length, segments) = self.find_segments(method, host, path);
        let longer = self.characters.iter().take_while(|(longer, _)| *longer > length);
        let mut characters = longer.filter_map(|(length, map)| {
            let start = path.len().checked_sub(*length)?;
            pick(map.get(&path[start..])?, method, host)
        });
        characters.next().or(segments).or_else(|| pick(&self.any, method, host))
    }

    /// Finds the route with the longest suffix of whole segments, and the length of that suffix in bytes.
    fn find_segments(
        &self,
        method: &Method,
        host: Option<&str>,
        path: &[u8],
    ) -> (usize, Option<usize>) {
        let (mut at, mut length, mut best) = (0, 0, (0, None));
        for segment in path[1..].rsplit(|byte| *byte == b'/') {
            let Some(child) = self.child(at, segment) else { break };
            length += segment.len() + 1;
            match child {
                Child::Route(route) => return (length, Some(route as usize)),
                Child::Node(node) => at = node as usize,
            }
            if let Some(route) = pick(&self.nodes[at].here, method, host) {
                best = (length, Some(route));
            }
        }
        best
    }
}

/// An index as a [`Child`] holds it. A configuration with 2^32 routes does not fit into memory.
fn index(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn pick(candidates: &[RouteCandidate], method: &Method, host: Option<&str>) -> Option<usize> {
    let found = candidates.iter().find(|candidate| candidate.accepts(method, host));
    found.map(|candidate| candidate.route)
}

// === impl Ambiguous ===

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("servers read this path in several ways, and each has another route here")?;
        match self.decided_by {
            Some((what, key)) => write!(
                f,
                "; they differ about {what}: the configuration can say what the upstream does, with {key} under `paths`"
            ),
            None => Ok(()),
        }
    }
}

// === impl RouteCandidate ===

impl RouteCandidate {
    fn takes_all(&self) -> bool {
        self.methods.is_empty() && self.host.is_none()
    }

    fn accepts(&self, method: &Method, host: Option<&str>) -> bool {
        let same = |own: &str| host.is_some_and(|host| host.eq_ignore_ascii_case(own));
        (self.methods.is_empty() || self.methods.contains(method))
            && self.host.as_deref().is_none_or(same)
    }

    /// Sorts the more specific candidate first: one with a host before one with methods, few methods before many.
    fn rank(&self) -> (bool, bool, usize) {
        (self.host.is_none(), self.methods.is_empty(), self.methods.len())
    }
}

/// Returns the host of an authority, without the port and without the final dot of a full name (RFC 1034 section 3.1).
pub fn host_of(authority: &str) -> &str {
    // The last byte that is no digit is the colon before a port.
    let host = match authority.bytes().rposition(|byte| !byte.is_ascii_digit()) {
        Some(colon) if authority.as_bytes()[colon] == b':' => &authority[..colon],
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests;
