//! The axioms: happens-before, coherence, and the order of SC accesses and fences. The names are
//! those of the paper. Atomicity, and that nothing comes out of thin air, is kept by the way in
//! which an execution grows.

use std::sync::atomic::Ordering::SeqCst;

use super::Execution;
use super::execution::{Event, INITIAL};
use super::relation::{Relation, events};

impl Execution {
    /// Returns `true` if the execution has a data race: two accesses to one location that
    /// happens-before does not order. At least one of them is plain, and at least one is a write.
    pub(crate) fn has_race(&self) -> bool {
        let hb = self.happens_before();
        let conflict = |one: &Event, two: &Event| {
            one.location.is_some()
                && one.location == two.location
                && one.thread != two.thread
                && (one.written.is_some() || two.written.is_some())
                && (one.ordering.is_none() || two.ordering.is_none())
        };
        let all = || self.events.iter().enumerate();
        all().any(|(a, one)| {
            all().any(|(b, two)| conflict(one, two) && !hb.contains(a, b) && !hb.contains(b, a))
        })
    }

    /// Returns `true` if the axioms hold that construction does not ensure.
    pub(super) fn is_consistent(&self) -> bool {
        let (hb, eco) = (self.happens_before(), self.extended_coherence());
        let is_coherent = hb.is_irreflexive() && hb.then(&eco).is_irreflexive();
        is_coherent && self.partial_sc(&hb, &eco).closure().is_irreflexive()
    }

    /// Returns the set of events that satisfy a condition.
    fn mask(&self, is: impl Fn(&Event) -> bool) -> u64 {
        let all = self.events.iter().enumerate();
        all.filter(|(_, event)| is(event)).fold(0, |mask, (at, _)| mask | 1 << at)
    }

    /// Returns `sb`: sequenced before.
    fn sequenced_before(&self) -> Relation {
        let mut sb = Relation::empty(self.events.len());
        for (b, later) in self.events.iter().enumerate() {
            for (a, earlier) in self.events[..b].iter().enumerate() {
                let is_initial = earlier.thread == INITIAL && later.thread != INITIAL;
                if is_initial || earlier.thread == later.thread && later.thread != INITIAL {
                    sb.insert(a, b);
                }
            }
        }
        sb
    }

    /// Returns `mo`, `rb` and `rf`: modification order, reads-before and reads-from.
    fn orders(&self) -> [Relation; 3] {
        let empty = Relation::empty(self.events.len());
        let [mut mo, mut rb, mut rf] = [empty.clone(), empty.clone(), empty];
        for order in &self.modifications {
            for (at, &earlier) in order.iter().enumerate() {
                order[at + 1..].iter().for_each(|&later| mo.insert(earlier, later));
            }
        }
        for (reader, event) in self.events.iter().enumerate() {
            let Some(source) = event.source else { continue };
            rf.insert(source, reader);
            for later in (0..self.events.len()).filter(|&later| mo.contains(source, later)) {
                if later != reader {
                    rb.insert(reader, later);
                }
            }
        }
        [mo, rb, rf]
    }

    /// Returns `eco = (rf ∪ mo ∪ rb)⁺`: extended coherence order.
    fn extended_coherence(&self) -> Relation {
        let [mo, rb, rf] = self.orders();
        mo.union(&rb).union(&rf).closure()
    }

    /// Returns `sw`, synchronizes with: by release sequences of read-modify-writes, and by fences.
    fn synchronizes_with(&self, sb: &Relation) -> Relation {
        let mut sw = Relation::empty(self.events.len());
        let fences = self.mask(Event::is_fence);
        for (reader, read) in self.events.iter().enumerate() {
            let Some(mut source) = read.source.filter(|_| read.ordering.is_some()) else {
                continue;
            };
            let mut acquires = events(fences)
                .filter(|&fence| sb.contains(reader, fence) && self.events[fence].is_acquire())
                .fold(0_u64, |mask, fence| mask | 1 << fence);
            if read.is_acquire() {
                acquires |= 1 << reader;
            }
            // Through the release sequences that the source is part of, back to their heads.
            loop {
                let head = &self.events[source];
                if head.ordering.is_none() {
                    break;
                }
                let mut releases = events(fences)
                    .filter(|&fence| sb.contains(fence, source) && self.events[fence].is_release())
                    .fold(0_u64, |mask, fence| mask | 1 << fence);
                if head.is_release() {
                    releases |= 1 << source;
                }
                for from in events(releases) {
                    events(acquires).for_each(|to| sw.insert(from, to));
                }
                match head.source {
                    Some(before) => source = before,
                    None => break,
                }
            }
        }
        sw
    }

    /// Returns `hb = (sb ∪ sw)⁺`: happens before.
    fn happens_before(&self) -> Relation {
        let sb = self.sequenced_before();
        let sw = self.synchronizes_with(&sb);
        sb.union(&sw).closure()
    }

    /// Returns `psc = psc_base ∪ psc_F`: the partial order of SC events.
    fn partial_sc(&self, hb: &Relation, eco: &Relation) -> Relation {
        let sc = self.mask(|event| event.ordering == Some(SeqCst));
        let fences = self.mask(|event| event.ordering == Some(SeqCst) && event.is_fence());
        if sc == 0 {
            return Relation::empty(self.events.len());
        }
        let all = u64::MAX;
        let location = |event: usize| self.events[event].location;
        let is_same =
            |from: usize, to: usize| location(from).is_some() && location(from) == location(to);
        let sb = self.sequenced_before();
        let elsewhere = sb.filter(|from, to| !is_same(from, to));
        let [mo, rb, _] = self.orders();
        let scb = sb
            .union(&elsewhere.then(hb).then(&elsewhere))
            .union(&hb.filter(is_same))
            .union(&mo)
            .union(&rb);
        let hb_or_same = hb.clone().with_identity(all >> (64 - self.events.len()));
        let before = hb_or_same.between(fences, all).with_identity(sc);
        let after = hb_or_same.between(all, fences).with_identity(sc);
        let base = before.then(&scb).then(&after).between(sc, sc);
        hb.union(&hb.then(eco).then(hb)).between(fences, fences).union(&base)
    }
}
