//! Which route a request takes: the longest suffix that its path ends in, then the most specific route.
//! The cost depends on the request's path, not on the number of routes.

use crate::{
    config,
    path::{Paths, Suffix},
    probing::ProbingTable,
};
use ahash::{HashMap, RandomState};
use http::Method;
use smallvec::SmallVec;
use std::{cmp::Reverse, fmt};

/// All routes, ready to be searched.
#[derive(Debug)]
pub struct Table {
    /// A trie over segments, last segment first; the root is 0.
    nodes: Vec<Node>,
    hasher: RandomState,
    /// Suffixes of characters by their length, longest first.
    characters: Vec<(usize, Suffixes)>,
    any: Candidates,
    /// How the origins read paths.
    paths: Paths,
    /// The same routes with the case of their suffixes folded, where that is another one and some origins may fold it.
    folded: Option<Box<Table>>,
}

/// Origins read a path in several ways, and each is limited in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ambiguous {
    /// What of the path they differ about, and the key under `paths` that would decide it.
    decided_by: Option<(&'static str, &'static str)>,
}

type Suffixes = HashMap<Text, Candidates>;
/// What most segments fit into, so that a look at one among thousands is not one more at what it points to.
type Text = SmallVec<[u8; 16]>;
/// Most are alone.
type Candidates = SmallVec<[Candidate; 1]>;

#[derive(Debug, Default)]
struct Node {
    children: ProbingTable<Box<[Option<Branch>]>>,
    /// Routes whose suffix ends here, the more specific first.
    here: Candidates,
}

/// Half of a cache line.
#[derive(Debug)]
#[repr(align(32))]
struct Branch {
    segment: Text,
    child: Child,
}

/// What stands behind a segment.
#[derive(Debug, Clone, Copy)]
enum Child {
    Node(u32),
    /// The usual end: a route that takes every request, and no suffix that is longer.
    Route(u32),
}

#[derive(Debug)]
struct Candidate {
    methods: Box<[Method]>,
    host: Option<Box<str>>,
    route: usize,
}

// === impl Table ===

impl Table {
    /// A table of `routes` before origins that read paths so; it answers with their indices.
    pub fn new(routes: &[config::Route], paths: Paths) -> Self {
        let is_cased = |route: &config::Route| route.suffix.folded() != route.suffix;
        let mut table = Self::of(routes, paths, Suffix::clone);
        if paths.may_fold() && routes.iter().any(is_cased) {
            table.folded = Some(Box::new(Self::of(routes, paths, Suffix::folded)));
        }
        table
    }

    fn of(routes: &[config::Route], paths: Paths, form: impl Fn(&Suffix) -> Suffix) -> Self {
        let mut table = Self {
            nodes: vec![Node::default()],
            hasher: RandomState::new(),
            characters: Vec::new(),
            any: Candidates::new(),
            paths,
            folded: None,
        };
        for (index, route) in routes.iter().enumerate() {
            let methods = route.methods.clone().into();
            let host = route.host.clone().map(Into::into);
            table.place(&form(&route.suffix)).push(Candidate { methods, host, route: index });
        }
        table.characters.sort_by_key(|(length, _)| Reverse(*length));
        let lists = table.nodes.iter_mut().map(|node| &mut node.here);
        let characters = table.characters.iter_mut().flat_map(|(_, map)| map.values_mut());
        for list in lists.chain(characters).chain([&mut table.any]) {
            list.sort_by_key(Candidate::rank);
        }
        table.shorten();
        table
    }

    /// Names the routes at usual ends where they are looked for, so that nobody looks at their nodes, and spreads what is
    /// looked for.
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

    /// A new node behind `segment` of the node at `at`.
    fn grow(&mut self, at: usize, segment: &[u8]) -> usize {
        let (new, hasher) = (self.nodes.len(), &self.hasher);
        let branch = Branch { segment: segment.into(), child: Child::Node(index(new)) };
        let hash = |branch: &Branch| hasher.hash_one(&branch.segment[..]);
        self.nodes[at].children.insert(branch, hash);
        self.nodes.push(Node::default());
        new
    }

    /// What stands behind `segment` of the node at `at`.
    fn child(&self, at: usize, segment: &[u8]) -> Option<Child> {
        let (children, hash) = (&self.nodes[at].children, self.hasher.hash_one(segment));
        let place = children.find(hash, |branch| branch.segment[..] == *segment)?;
        children.get(place).map(|branch| branch.child)
    }

    /// The route of a request; `host` without port, `path` without query, both as the client sent them.
    pub fn find(&self, method: &Method, host: Option<&str>, path: &str) -> Option<usize> {
        self.find_reading(method, host, &self.paths.normal(path))
    }

    /// The same where origins read a path in several ways: a route that `covers` those of all readings, so that no
    /// spelling gets past what limits the path that an origin serves.
    ///
    /// # Errors
    ///
    /// No route covers the others.
    pub fn find_covering(
        &self,
        method: &Method,
        host: Option<&str>,
        path: &str,
        covers: impl Fn(usize, usize) -> bool,
    ) -> Result<Option<usize>, Ambiguous> {
        let (normal_form, is_sure) = self.paths.read(path);
        let Some(own) = self.find_reading(method, host, &normal_form) else { return Ok(None) };
        if is_sure {
            return Ok(Some(own));
        }
        let of = |paths: &Paths| self.covering(paths, (method, host, path), own, &covers);
        if let Some(route) = of(&self.paths) {
            return Ok(Some(route));
        }
        let mut keys = self.paths.narrower();
        let decides = keys.find(|(_, _, paths)| of(paths).is_some());
        Err(Ambiguous { decided_by: decides.map(|(what, key, _)| (what, key)) })
    }

    /// The route that covers those of all readings, its `own` among them.
    fn covering(
        &self,
        paths: &Paths,
        (method, host, path): (&Method, Option<&str>, &str),
        own: usize,
        covers: impl Fn(usize, usize) -> bool,
    ) -> Option<usize> {
        let others = paths.readings(path).filter_map(|(reading, is_folded)| {
            let table = self.folded.as_deref().filter(|_| is_folded).unwrap_or(self);
            let found = table.find_reading(method, host, &reading);
            // What it reads may have another spelling itself, and is then limited as its normal form is.
            match found.filter(|route| !self.any.iter().any(|any| any.route == *route)) {
                None => table.find_reading(method, host, &paths.normal_of(&reading, is_folded)),
                specific => specific,
            }
        });
        let mut routes = SmallVec::<[usize; 4]>::from_slice(&[own]);
        for route in others {
            if !routes.contains(&route) {
                routes.push(route);
            }
        }
        routes.iter().copied().find(|one| routes.iter().all(|other| covers(*one, *other)))
    }

    /// The route with the longest suffix of one reading.
    fn find_reading(&self, method: &Method, host: Option<&str>, path: &[u8]) -> Option<usize> {
        let (length, segments) = self.find_segments(method, host, path);
        let longer = self.characters.iter().take_while(|(longer, _)| *longer > length);
        let mut characters = longer.filter_map(|(length, map)| {
            let start = path.len().checked_sub(*length)?;
            pick(map.get(&path[start..])?, method, host)
        });
        characters.next().or(segments).or_else(|| pick(&self.any, method, host))
    }

    /// The longest suffix of whole segments and its length in bytes.
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

/// What a [`Child`] holds. There is no room for configurations with more.
fn index(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn pick(candidates: &[Candidate], method: &Method, host: Option<&str>) -> Option<usize> {
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

// === impl Candidate ===

impl Candidate {
    fn takes_all(&self) -> bool {
        self.methods.is_empty() && self.host.is_none()
    }

    fn accepts(&self, method: &Method, host: Option<&str>) -> bool {
        let same = |own: &str| host.is_some_and(|host| host.eq_ignore_ascii_case(own));
        (self.methods.is_empty() || self.methods.contains(method))
            && self.host.as_deref().is_none_or(same)
    }

    /// The more specific first: a host before methods, few methods before many.
    fn rank(&self) -> (bool, bool, usize) {
        (self.host.is_none(), self.methods.is_empty(), self.methods.len())
    }
}

/// The host of an authority, without its port and the final dot of a full name (RFC 1034 section 3.1).
pub fn host_of(authority: &str) -> &str {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests;
