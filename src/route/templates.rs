//! Finds the route of a whole path: the most literal template that matches. The cost depends on the length of the path, not
//! on the number of templates.

use super::{Candidates, RouteCandidate, Text, pick};
use crate::{
    path::{PathTemplate, TemplateSegment},
    probing::ProbingTable,
};
use ahash::RandomState;
use http::Method;

/// A trie over the segments of templates, first segment first. Node 0 is the root.
#[derive(Debug)]
pub(super) struct TemplateTrie {
    nodes: Vec<TemplateNode>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct TemplateNode {
    literals: ProbingTable<Box<[Option<LiteralBranch>]>>,
    /// The characters before a parameter, with the node after it. The longest ones come first, and none at the end.
    parameters: Vec<(Text, u32)>,
    /// Routes whose whole template leads to this node, the more specific ones first.
    here: Candidates,
    /// Routes whose template continues with `{*rest}`.
    rest: Candidates,
}

#[derive(Debug)]
struct LiteralBranch {
    segment: Text,
    node: u32,
}

// === impl TemplateTrie ===

impl TemplateTrie {
    pub(super) fn new() -> Self {
        Self { nodes: vec![TemplateNode::default()], hasher: RandomState::new() }
    }

    pub(super) fn add(&mut self, template: &PathTemplate, route: RouteCandidate) {
        let mut at = 0;
        for segment in template.segments() {
            at = match segment {
                TemplateSegment::Literal(literal) => self.literal(at, literal),
                TemplateSegment::Parameter(prefix) => self.parameter(at, prefix),
                // A template ends with it.
                TemplateSegment::Rest => return self.nodes[at].rest.push(route),
            };
        }
        self.nodes[at].here.push(route);
    }

    /// Sorts the routes of each node and spreads its table, so that most lookups find their segment at the first place.
    pub(super) fn finish(&mut self) {
        let hasher = &self.hasher;
        for node in &mut self.nodes {
            node.here.sort_by_key(RouteCandidate::rank);
            node.rest.sort_by_key(RouteCandidate::rank);
            node.parameters.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
            if !node.literals.is_empty() {
                node.literals.spread(|branch| hasher.hash_one(&branch.segment[..]));
            }
        }
    }

    fn literal(&mut self, at: usize, literal: &[u8]) -> usize {
        if let Some(known) = self.child(&self.nodes[at], literal) {
            return known;
        }
        let (new, hasher) = (super::index(self.nodes.len()), &self.hasher);
        let hash = |branch: &LiteralBranch| hasher.hash_one(&branch.segment[..]);
        let branch = LiteralBranch { segment: literal.into(), node: new };
        self.nodes[at].literals.insert(branch, hash);
        self.grow()
    }

    fn parameter(&mut self, at: usize, prefix: &[u8]) -> usize {
        let mut known = self.nodes[at].parameters.iter();
        if let Some((_, node)) = known.find(|(own, _)| own[..] == *prefix) {
            return *node as usize;
        }
        let new = super::index(self.nodes.len());
        self.nodes[at].parameters.push((prefix.into(), new));
        self.grow()
    }

    /// Adds a node, and returns its index.
    fn grow(&mut self) -> usize {
        self.nodes.push(TemplateNode::default());
        self.nodes.len() - 1
    }

    fn child(&self, node: &TemplateNode, literal: &[u8]) -> Option<usize> {
        let hash = self.hasher.hash_one(literal);
        let place = node.literals.find(hash, |branch| branch.segment[..] == *literal)?;
        node.literals.get(place).map(|branch| branch.node as usize)
    }

    /// Finds the route of the most literal template that matches a path in normal form and has a route for the request.
    pub(super) fn find(&self, method: &Method, host: Option<&str>, path: &[u8]) -> Option<usize> {
        let segments = if path == b"/" { &[][..] } else { path };
        self.below(&self.nodes[0], segments, method, host)
    }

    /// Finds the route in the part of the trie below a node. It descends at most as deep as the longest template.
    fn below(
        &self,
        node: &TemplateNode,
        path: &[u8],
        method: &Method,
        host: Option<&str>,
    ) -> Option<usize> {
        let Some(after) = path.strip_prefix(b"/") else {
            return pick(&node.here, method, host);
        };
        let end = memchr::memchr(b'/', after).unwrap_or(after.len());
        let (segment, others) = after.split_at(end);
        if !node.literals.is_empty()
            && let Some(child) = self.child(node, segment)
            && let Some(found) = self.below(&self.nodes[child], others, method, host)
        {
            return Some(found);
        }
        for (prefix, child) in &node.parameters {
            if segment.len() > prefix.len()
                && segment.starts_with(prefix)
                && let Some(found) = self.below(&self.nodes[*child as usize], others, method, host)
            {
                return Some(found);
            }
        }
        pick(&node.rest, method, host)
    }
}
