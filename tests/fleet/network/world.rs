//! The events of the world between gateways and their store: messages that travel, arrive and are lost, and faults.

use super::*;

// === impl World ===

impl World {
    pub(super) fn push(&mut self, at: Micros, line: usize, event: Event) {
        self.numbers += 1;
        self.coming.insert((at, line, self.numbers), event);
    }

    pub(super) fn send(
        &mut self,
        now: Micros,
        line: usize,
        ask: Ask,
        answer: oneshot::Sender<Result<Said, StoreError>>,
    ) {
        self.numbers += 1;
        let id = self.numbers;
        let (up, number, gateway) =
            (self.links[line].up, self.links[line].number, self.links[line].gateway);
        if up != NEVER && up > now {
            drop(answer.send(Err(StoreError::NotConnected)));
            return;
        }
        self.links[line].asked.insert(id, answer);
        if up == NEVER {
            return;
        }
        let message = Message { line, number, id, ask };
        self.push(now + SILENT, line, Event::GivenUp(message.clone()));
        let leaves = now.max(self.stalled[gateway]).max(self.silent[gateway]);
        if let Some(at) = self.links[line].travels(leaves, 0) {
            self.push(at, line, Event::Arrives(message));
        }
    }

    pub(super) fn happens(&mut self, at: Micros, event: Event) {
        match event {
            Event::Arrives(message) => self.arrives(at, message),
            Event::Answered(message, said, executed) => {
                let gateway = self.links[message.line].gateway;
                let later = self.stalled[gateway].max(self.silent[gateway]);
                if later > at {
                    return self.push(
                        later,
                        message.line,
                        Event::Answered(message, said, executed),
                    );
                }
                let line = &mut self.links[message.line];
                line.heard = match line.heard {
                    (heard, first, last) if heard == at => {
                        (at, first.min(executed), last.max(executed))
                    }
                    _ => (at, executed, executed),
                };
                let answer = line.asked.remove(&message.id);
                // A reply says that states were lost before it.
                let losses = self.server.losses.iter().filter(|lost| **lost <= executed).count();
                if let Some(pauses) = &self.pauses[gateway]
                    && self.known_losses[gateway] < losses
                {
                    pauses.lost_states();
                    self.known_losses[gateway] = losses;
                }
                if let Some(answer) = answer {
                    drop(answer.send(Ok(said)));
                }
            }
            Event::GivenUp(message) => {
                let line = &self.links[message.line];
                if line.asked.contains_key(&message.id) && line.up != NEVER {
                    let up = at.max(self.silent[line.gateway]) + AGAIN;
                    self.cut(message.line, up, "silent");
                }
            }
            Event::Thaws => {
                for message in std::mem::take(&mut self.waiting) {
                    self.arrives(at, message);
                }
            }
            Event::Hears(gateway) => self.hear(gateway, true),
            Event::Told(line, key, news) => {
                let Line { gateway, up, .. } = self.links[line];
                if self.stalled[gateway] > at {
                    self.push(self.stalled[gateway], line, Event::Told(line, key, news));
                } else if up <= at
                    && self.silent[gateway] <= at
                    && let Some(pauses) = &self.pauses[gateway]
                {
                    match news {
                        News::Paused { left, falls: true } => pauses.learn_fall(&key, left, 429),
                        News::Paused { left, .. } => pauses.learn(&key, left, 429),
                        News::Counted(span) => pauses.learn_count(&key, span),
                        News::Freed => pauses.end(&key),
                        News::Opened(left) => {
                            let opening = Opening::new(Instant::now() + limit::duration(left));
                            pauses.openings().opened(&key, opening);
                        }
                    }
                }
            }
        }
    }

    pub(super) fn arrives(&mut self, at: Micros, message: Message) {
        if self.frozen_until > at {
            self.waiting.push(message);
            return;
        }
        let gateway = self.links[message.line].gateway;
        let falls = self.falls(at, &message.ask);
        let counts_before = self.server.counts_begun();
        let said = match &message.ask {
            Ask::Run(entries) => {
                Said::Replies(controls::run(self.defect, &mut self.server, gateway, at, entries))
            }
            Ask::Beat(heartbeat) => {
                let open: Vec<_> = (0..self.silent.len()).map(|it| self.is_open(at, it)).collect();
                let heartbeat = controls::heartbeat(self.defect, heartbeat);
                let beat = self.server.beat(at, gateway, &heartbeat, &open);
                Said::Beat(controls::beat(self.defect, beat))
            }
            Ask::Leave(id) => {
                self.server.leave(id);
                Said::Left
            }
        };
        let counts = self.server.counts_begun() != counts_before;
        self.publish(at, &message.ask, &said, &falls, counts);
        self.executed.push((at, gateway, message.ask.clone(), said.clone()));
        let takes = controls::takes(self.defect, &message.ask);
        let line = &mut self.links[message.line];
        if line.number == message.number
            && let Some(arrives) = line.travels(at + takes, 1)
        {
            self.push(arrives, message.line, Event::Answered(message, said, at));
        }
    }

    /// Whether the store takes the connections of a gateway for open: those over which nothing passes are.
    fn is_open(&self, at: Micros, gateway: usize) -> bool {
        self.silent[gateway] > at
            || self.links.iter().any(|line| line.gateway == gateway && line.up <= at)
    }

    /// For each entry of a call that the store is about to execute, whether it lowers a rate.
    fn falls(&self, at: Micros, ask: &Ask) -> Vec<bool> {
        let Ask::Run(entries) = ask else { return Vec::new() };
        let falls = |entry: &Entry| match entry {
            Entry::Pause { check, pause } => self.server.falls(at, check, *pause),
            _ => false,
        };
        entries.iter().map(falls).collect()
    }

    /// Tells each gateway of the pauses that a call has begun, and of the slots that have become free.
    fn publish(&mut self, at: Micros, ask: &Ask, said: &Said, falls: &[bool], counts: bool) {
        let (Ask::Run(entries), Said::Replies(replies)) = (ask, said) else { return };
        for ((entry, reply), falls) in entries.iter().zip(replies).zip(falls) {
            self.lowered |= matches!(reply, Reply::Level(level) if level.rate > 0);
            let (check, news) = match (entry, reply) {
                (Entry::Pause { check, .. }, Reply::Level(level)) => {
                    (check, News::Paused { left: level.paused, falls: *falls })
                }
                (Entry::Lower { check, told }, _) if counts => (check, News::Counted(told.span)),
                (Entry::Refund { check, .. }, Reply::Done(true)) => {
                    (check, News::Opened(self.server.level(at, check).next))
                }
                (Entry::Forget { check }, _) if self.defect != Some(Defect::EndsAreNotTold) => {
                    (check, News::Freed)
                }
                _ => continue,
            };
            for gateway in 0..self.pauses.len() {
                let Some(line) = self.lines(Some(gateway)).pop() else { continue };
                let Gateway { delay, jitter, .. } = self.links[line].way;
                let arrives = at + delay.max(LEAST) + jitter;
                self.push(arrives, line, Event::Told(line, check.key.clone(), news));
            }
        }
    }

    /// From now on the gateway receives messages about pauses, or no longer does.
    pub(crate) fn receive_pauses(&mut self, gateway: usize, pauses: Option<Arc<Pauses>>) {
        self.pauses[gateway] = pauses;
    }

    /// Ends the connection; another one can be used from `up` on.
    pub(super) fn cut(&mut self, line: usize, up: Micros, why: &str) {
        let line = &mut self.links[line];
        if line.up == NEVER {
            return;
        }
        line.number += 1;
        line.up = up;
        for (_, answer) in std::mem::take(&mut line.asked) {
            drop(answer.send(Err(StoreError::Unreachable(why.into()))));
        }
    }

    pub(super) fn lines(&self, gateway: Option<usize>) -> Vec<usize> {
        let all = 0..self.links.len();
        all.filter(|line| gateway.is_none_or(|one| self.links[*line].gateway == one)).collect()
    }

    /// Ends the connections of one gateway or all; no other can be made until `until`.
    pub(crate) fn cut_all(&mut self, gateway: Option<usize>, until: Micros) {
        if gateway.is_none() {
            self.store_up = until.max(self.store_up);
        }
        for line in self.lines(gateway) {
            let again = self.links[line].rng.i64(0..=AGAIN);
            self.cut(line, until + again, "cut");
        }
    }

    /// The server ends: calls that it has not executed are lost.
    pub(crate) fn lose_messages(&mut self) {
        self.waiting.clear();
        self.coming.retain(|_, event| !matches!(event, Event::Arrives(_)));
    }

    /// The gateway is dead: the store receives nothing from it.
    pub(crate) fn kill(&mut self, gateway: usize) {
        for line in self.lines(Some(gateway)) {
            self.links[line].up = NEVER;
            self.links[line].number += 1;
        }
        self.pauses[gateway] = None;
        self.hear(gateway, false);
    }

    /// The gateway stalls until `until`.
    pub(crate) fn stall(&mut self, gateway: usize, until: Micros) {
        self.stalled[gateway] = until.max(self.stalled[gateway]);
    }

    /// No message passes between the gateway and the store until `until`.
    pub(crate) fn silence(&mut self, gateway: usize, until: Micros) {
        self.silent[gateway] = until.max(self.silent[gateway]);
        self.hear(gateway, false);
        self.push(until, 0, Event::Hears(gateway));
    }

    pub(crate) fn freeze(&mut self, until: Micros) {
        self.frozen_until = until.max(self.frozen_until);
        self.push(self.frozen_until, 0, Event::Thaws);
    }

    pub(super) fn hear(&mut self, gateway: usize, hears: bool) {
        for line in self.lines(Some(gateway)) {
            let (calls, is_dead) = (self.links[line].calls.clone(), self.links[line].up == NEVER);
            self.server.hear(&calls, hears && !is_dead);
            if hears {
                calls.call_all();
            }
        }
    }
}
