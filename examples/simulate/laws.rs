//! The requests of a run of the sharing simulation, and the laws that they may break. Decides nothing.

use super::callers::{Callers, Scene};
use crate::{EPOCH, MS, SECOND};
use paceway::algorithm::{Algorithm, Micros, OpenRate, fair::Priority};

/// The distance from its share that a tenant may reach in any stretch, in slots: one, and what integers round.
const ONE_SLOT: f64 = 1.001;
/// The distance from its share that a tenant may reach at the end, if requests have different costs.
const A_TENTH: f64 = 0.1;
/// A slot of the token bucket.
const SLOT: Micros = SECOND / 20;

/// A request that was sent.
pub(super) struct Sent {
    pub(super) callers: usize,
    pub(super) arrival: Micros,
    /// Its slot.
    pub(super) at: Micros,
    pub(super) cost: i64,
    /// The requests of all callers that waited when its slot was certain, itself included. Empty if it did not wait.
    pub(super) waiting: Vec<i64>,
    /// How often callers had begun or ceased to wait until then.
    pub(super) changes: i64,
    /// Whether no other request of its callers waited when it came.
    pub(super) is_newcomer: bool,
}

/// All requests of a run.
pub(super) struct Seen {
    /// In the order of the decisions.
    pub(super) sent: Vec<Sent>,
    pub(super) refused: Vec<i64>,
    /// When a request that left came, and when it left.
    pub(super) left: Vec<(Micros, Micros)>,
    /// Requests that were admitted and refused later.
    pub(super) broken_promises: i64,
    /// Requests that wait at the end.
    pub(super) unanswered: usize,
}

// === impl Seen ===

impl Seen {
    pub(super) fn new(scene: &Scene) -> Self {
        let refused = vec![0; scene.callers.len()];
        let (sent, left) = (Vec::new(), Vec::new());
        Self { sent, refused, left, broken_promises: 0, unanswered: 0 }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.sent.extend(other.sent);
        self.refused.iter_mut().zip(other.refused).for_each(|(own, other)| *own += other);
    }

    /// Describes each law that the run breaks.
    pub(super) fn broken_laws(&self, scene: &Scene, rule: &Algorithm) -> Vec<String> {
        let mut broken = Vec::new();
        let late = |sent: &&Sent| sent.at - sent.arrival > scene.callers[sent.callers].max_wait;
        let late = self.sent.iter().filter(late).count();
        if late > 0 || self.broken_promises > 0 || self.unanswered > 0 {
            broken.push(format!(
                "{late} sent late, {} refused later, {} never answered",
                self.broken_promises, self.unanswered
            ));
        }
        let is_one = scene.callers.iter().all(|own| own.priority == scene.callers[0].priority);
        for (i, callers) in scene.callers.iter().enumerate() {
            let error = self.greatest_error(scene, i);
            if is_one && scene.burst() == 1 && error > ONE_SLOT {
                broken.push(format!("{} was {error:.3} slots from its share", callers.name));
            }
            let error = (self.share(i) - scene.share(i)).abs();
            if scene.burst() > 1 && error > A_TENTH {
                broken.push(format!("{} was {error:.3} from its share", callers.name));
            }
            let missing = self.missing_of_a_twentieth(scene, callers.priority);
            if missing > ONE_SLOT {
                broken.push(format!("{} missed a twentieth by {missing:.3} slots", callers.name));
            }
            let is_bucket = matches!(rule, Algorithm::TokenBucket(_));
            let newcomers = self.sent.iter().filter(|sent| sent.callers == i && sent.is_newcomer);
            let longest = newcomers.map(|sent| sent.at - sent.arrival).max().unwrap_or_default();
            if let Some(most) = callers.most_slots.filter(|_| is_bucket)
                && longest > most * SLOT
            {
                broken.push(format!("a newcomer of {} waited {} ms", callers.name, longest / MS));
            }
        }
        broken.extend(self.broken_rule(rule));
        broken.iter().map(|law| format!("{}, {}: {law}", scene.name, rule.facts().name)).collect()
    }

    /// The requests that waited, those of one instant together: these have no order among them.
    fn instants(&self) -> impl Iterator<Item = &[Sent]> {
        let instants = self.sent.chunk_by(|one, next| one.at == next.at);
        instants.filter(|together| together.iter().all(|sent| !sent.waiting.is_empty()))
    }

    /// The greatest difference, in any stretch of instants in which the same callers waited, between the permits that callers
    /// got and their share.
    fn greatest_error(&self, scene: &Scene, callers: usize) -> f64 {
        let (mut worst, mut changes) = (0.0_f64, 0);
        let (mut ahead, mut least, mut most) = (0.0, 0.0_f64, 0.0_f64);
        for together in self.instants() {
            let Sent { waiting, changes: own, .. } = &together[0];
            let of = |i: usize| together.iter().filter(move |sent| sent.callers == i);
            // All of these wait afterwards, too.
            let is_same =
                (0..waiting.len()).all(|i| waiting[i] == 0 || waiting[i] > of(i).count() as i64);
            if *own != changes || !is_same {
                (ahead, least, most, changes) = (0.0, 0.0, 0.0, *own);
            }
            if waiting[callers] == 0 || !is_same {
                continue;
            }
            let weights = scene.callers.iter().zip(waiting).filter(|(_, count)| **count > 0);
            let all: i64 = weights.map(|(own, _)| own.weight).sum();
            let share = scene.callers[callers].weight as f64 / all as f64;
            let all: i64 = together.iter().map(|sent| sent.cost).sum();
            let got: i64 = of(callers).map(|sent| sent.cost).sum();
            ahead += got as f64 - share * all as f64;
            (least, most) = (least.min(ahead), most.max(ahead));
            worst = worst.max(most - least);
        }
        worst
    }

    /// The most permits that a priority missed of a twentieth, in any stretch in which it waited while a higher one did.
    fn missing_of_a_twentieth(&self, scene: &Scene, priority: Priority) -> f64 {
        let (mut missing, mut worst) = (0.0_f64, 0.0_f64);
        for together in self.instants() {
            let waits = |is: &dyn Fn(Priority) -> bool| {
                let mut all = scene.callers.iter().zip(&together[0].waiting);
                all.any(|(own, count)| *count > 0 && is(own.priority))
            };
            if !waits(&|own| own == priority) || !waits(&|own| own < priority) {
                missing = 0.0;
                continue;
            }
            let is_own = |sent: &&Sent| scene.callers[sent.callers].priority == priority;
            let got = together.iter().filter(is_own).count();
            missing = (missing + 0.05 * together.len() as f64 - got as f64).max(0.0);
            worst = worst.max(missing);
        }
        worst
    }

    /// Describes the first slot that the rule does not have, or that passed unused while a request waited.
    fn broken_rule(&self, rule: &Algorithm) -> Option<String> {
        let mut all: Vec<_> =
            self.sent.iter().map(|sent| (sent.at, sent.arrival, sent.cost)).collect();
        all.sort_unstable();
        let mut open = rule.open(None, EPOCH);
        let mut before = EPOCH;
        for (i, (at, _, cost)) in all.iter().enumerate() {
            let (wait, _) = open.earliest(before - EPOCH, *cost, 0);
            let first = EPOCH + wait;
            if first > *at {
                return Some(format!("a slot {} µs too early", first - at));
            }
            let waits = |(arrival, end): &(Micros, Micros)| *arrival <= first && *end > first;
            // One that costs more may not fit.
            let sent = all[i..].iter().filter(|(.., own)| own <= cost);
            let sent = sent.map(|(at, arrival, _)| (*arrival, *at));
            if first < *at && sent.chain(self.left.iter().copied()).any(|own| waits(&own)) {
                return Some(format!("no slot in {} µs while a request waited", at - first));
            }
            let (_, start) = open.earliest(at - EPOCH, *cost, 0);
            open.take(start, *cost);
            before = *at;
        }
        None
    }

    /// The waits of the requests of callers that were sent, sorted.
    fn waits(&self, callers: usize) -> Vec<Micros> {
        let own = self.sent.iter().filter(|sent| sent.callers == callers);
        let mut waits: Vec<_> = own.map(|sent| sent.at - sent.arrival).collect();
        waits.sort_unstable();
        waits
    }

    /// The part of the permits that callers got while all callers waited.
    fn share(&self, callers: usize) -> f64 {
        let (mut own, mut all) = (0, 0);
        let waits = |sent: &&Sent| sent.waiting.iter().all(|count| *count > 0);
        for sent in self.sent.iter().filter(|sent| !sent.waiting.is_empty()).filter(waits) {
            own += if sent.callers == callers { sent.cost } else { 0 };
            all += sent.cost;
        }
        own as f64 / all.max(1) as f64
    }

    /// The lines of the scene, one for each of its callers.
    pub(super) fn lines(&self, scene: &Scene) -> Vec<[String; 7]> {
        let line = |(i, callers): (usize, &Callers)| {
            let (waits, name) = (self.waits(i), if i == 0 { scene.name } else { "" });
            let share = 100.0 * self.share(i);
            let at = |part: usize| waits.get(waits.len() * part / 100).copied().unwrap_or_default();
            [
                name.to_owned(),
                callers.cell(),
                waits.len().to_string(),
                self.refused[i].to_string(),
                format!("{share:.1} %"),
                time(at(50)),
                time(at(95)),
            ]
        };
        scene.callers.iter().enumerate().map(line).collect()
    }
}

fn time(span: Micros) -> String {
    match span {
        0..SECOND => format!("{} ms", span / MS),
        _ => format!("{:.1} s", span as f64 / SECOND as f64),
    }
}
