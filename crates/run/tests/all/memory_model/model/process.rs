//! The model of the memory of one process.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use super::files::{Certainty, Files};
use super::layers::{Layer, Layers};
use super::place::{Content, Page, Source, State, Word};
use super::{Change, Shown, Tick};

/// The model of the memory of one process.
#[derive(Debug, Default)]
pub(super) struct ProcessModel {
    layers: Layers,
    /// The pages about which more is known than their mapping shows.
    pages: BTreeMap<u64, Page>,
    changes: Vec<ActiveChange>,
    next_change: u64,
    /// The pages whose writes have faulted, and will be tried again.
    faults: Vec<u64>,
}

/// A change in progress.
#[derive(Clone, Debug)]
struct ActiveChange {
    number: u64,
    at: Tick,
    change: Change,
}

/// Changes.
impl ProcessModel {
    pub(super) fn begin(&mut self, change: Change, now: Tick) -> u64 {
        let number = self.next_change;
        self.next_change += 1;
        self.changes.push(ActiveChange { number, at: now, change });
        number
    }

    pub(super) fn cancel(&mut self, number: u64) {
        self.changes.retain(|active| active.number != number);
    }

    pub(super) fn end(&mut self, files: &mut Files, number: u64, now: Tick) {
        let Some(ActiveChange { at, change, .. }) = self.remove(number) else { return };
        let layer = |range: &Range<u64>, shown| vec![Layer::new(range.clone(), shown, now)];
        let none = BTreeMap::new();
        match change {
            Change::Map { range, shown } => {
                self.replace(&range, layer(&range, shown), none, at, now);
            }
            Change::Unmap(range) => {
                self.replace(&range, layer(&range, Shown::Nothing), none, at, now);
            }
            Change::Discard(range) => self.refresh(&range, none, at, now),
            Change::Offer(range) => {
                self.pages.range_mut(range).for_each(|(_, page)| page.offered = Some(now));
            }
            Change::Move { from, to } => self.end_move(&from, &to, at, now),
            Change::Grow(range) => {
                let layers = self.grown(&range, at, &[]);
                let layers = layers.into_iter().map(|layer| Layer { since: now, ..layer });
                self.replace(&range, layers.collect(), none, at, now);
            }
            Change::Truncate { file, first } => files.end_truncation(file, first, at, now),
            Change::MapAnywhere { .. } | Change::Fork => {}
        }
        self.tidy();
    }

    /// Sets the range of a mapping whose address has been chosen.
    pub(super) fn place(&mut self, number: u64, range: Range<u64>) {
        let active = self.changes.iter_mut().find(|active| active.number == number);
        if let Some(ActiveChange { change, .. }) = active
            && let Change::MapAnywhere { shown, .. } = *change
        {
            *change = Change::Map { shown: shown.moved(range.start), range };
        }
    }

    fn end_move(&mut self, from: &Range<u64>, to: &Range<u64>, at: Tick, now: Tick) {
        let layers = self.layers_since(from, at, &[]);
        let layers = layers.iter().filter_map(|layer| layer.moved(from, to));
        let layers = layers.map(|layer| Layer { since: now, removed: None, ..layer }).collect();
        let origins: Vec<u64> = self.known(from, &[]).into_iter().collect();
        let page = |origin| (to.start + (origin - from.start), self.page_since(origin, at, now));
        let arrived = origins.into_iter().map(page).filter(|(page, _)| to.contains(page)).collect();
        let nothing = vec![Layer::new(from.clone(), Shown::Nothing, now)];
        self.replace(from, nothing, BTreeMap::new(), at, now);
        self.replace(to, layers, arrived, at, now);
    }

    /// Returns the child of a fork: everything that was possible in the parent since the fork
    /// began.
    pub(super) fn end_fork(&mut self, number: u64, now: Tick) -> Self {
        let at = self.remove(number).map_or(now, |active| active.at);
        let all = 0..u64::MAX;
        let mut layers = Layers::default();
        let inherited = self.layers_since(&all, at, &[]);
        // What appeared during the fork may have appeared after the copy.
        let later = inherited.iter().filter(|layer| layer.since > at);
        layers.add(later.map(|layer| Layer::new(layer.range.clone(), Shown::Nothing, now)));
        let inherited = inherited.into_iter();
        layers.add(inherited.map(|layer| Layer { since: now, removed: None, ..layer }));
        let known = self.known(&all, &[]).into_iter();
        let pages = known.map(|page| (page, self.page_since(page, at, now))).collect();
        // The addresses of these mappings are not known yet.
        let is_unplaced =
            |active: &&ActiveChange| matches!(active.change, Change::MapAnywhere { .. });
        let changes = self.changes.iter().filter(is_unplaced).cloned().collect();
        self.tidy();
        Self { layers, pages, changes, next_change: self.next_change, faults: Vec::new() }
    }

    fn remove(&mut self, number: u64) -> Option<ActiveChange> {
        let index = self.changes.iter().position(|active| active.number == number)?;
        Some(self.changes.remove(index))
    }

    /// Replaces the mappings and the pages that were in `range` before a change began.
    fn replace(
        &mut self,
        range: &Range<u64>,
        layers: Vec<Layer>,
        arrived: BTreeMap<u64, Page>,
        began: Tick,
        now: Tick,
    ) {
        self.layers.replace(range, began, now, self.copied_since());
        self.layers.add(layers);
        self.refresh(range, arrived, began, now);
    }

    /// Resets the pages in `range` to the words that their mapping shows, the words that arrive,
    /// and the words that were written since `began`.
    fn refresh(
        &mut self,
        range: &Range<u64>,
        mut arrived: BTreeMap<u64, Page>,
        began: Tick,
        now: Tick,
    ) {
        let copied_since = self.copied_since();
        for (number, page) in self.pages.range_mut(range.clone()) {
            page.forget_before(began, now, copied_since);
            match arrived.remove(number) {
                Some(new) => page.add(new),
                None => page.contents.push(Content::new(Word::Fresh, now)),
            }
        }
        self.pages.append(&mut arrived);
        let there = self.pages.range(range.clone());
        let plain: Vec<u64> =
            there.filter(|(_, page)| page.is_plain()).map(|(&number, _)| number).collect();
        for number in plain {
            self.pages.remove(&number);
        }
    }

    /// Returns the beginning of the oldest copy in progress. The copy needs what was removed since.
    fn copied_since(&self) -> Option<Tick> {
        let copies = self
            .changes
            .iter()
            .filter(|active| matches!(active.change, Change::Move { .. } | Change::Fork));
        copies.map(|active| active.at).min()
    }

    fn tidy(&mut self) {
        if self.changes.is_empty() {
            self.layers.tidy();
        }
    }
}

/// Accesses.
impl ProcessModel {
    pub(super) fn write_begins(&mut self, page: u64, now: Tick) {
        self.faults.push(page);
        let page = self.pages.entry(page).or_insert_with(|| Page::fresh(now));
        page.copied.get_or_insert(now);
    }

    pub(super) fn write_ends(&mut self, page: u64) {
        if let Some(index) = self.faults.iter().position(|&fault| fault == page) {
            self.faults.swap_remove(index);
        }
    }

    /// Returns `true` if a page that can be written is mapped.
    pub(super) fn write(&mut self, files: &mut Files, page: u64, value: u64, now: Tick) -> bool {
        let sources = self.state(page, now, &[]).places();
        let certainty = if sources.len() == 1 { Certainty::Certain } else { Certainty::Possible };
        let is_mapped = !sources.is_empty();
        let mut is_own = false;
        for source in sources {
            match source {
                Source::Shared(file, number) => files.write(file, number, (value, now), certainty),
                _ => is_own = true,
            }
        }
        if is_own {
            self.write_own(page, value, certainty, now);
        }
        is_mapped
    }

    fn write_own(&mut self, number: u64, value: u64, certainty: Certainty, now: Tick) {
        let is_open = self.is_open(number, now) || certainty == Certainty::Possible;
        let is_faulted = self.faults.contains(&number);
        let copied_since = self.copied_since();
        let page = self.pages.entry(number).or_insert_with(|| Page::fresh(0));
        if !is_open {
            page.forget_before(now, now, copied_since);
            page.offered = None;
            page.copied = page.copied.filter(|_| is_faulted);
        }
        page.contents.push(Content::new(Word::Written(value), now));
    }

    /// Returns the words that are possible, if the word that was read is not one of them.
    pub(super) fn read(
        &mut self,
        files: &mut Files,
        page: u64,
        value: u64,
        now: Tick,
    ) -> Result<(), Vec<u64>> {
        let state = self.state(page, now, &[]);
        let expected = state.values(files, now);
        let result = if expected.contains(&value) { Ok(()) } else { Err(expected) };
        // During a change, or where one of several pages may be mapped, another CPU may find
        // another word.
        if let [source] = state.places()[..] {
            match source {
                Source::Shared(file, number) => files.observe(file, number, value, now),
                _ if self.is_open(page, now) => {}
                _ => self.observe(files, page, (value, now), source, &state),
            }
        }
        result
    }

    /// Records that a read has found the word of a private page. Even if the word was wrong, it is
    /// the page's word from now on.
    fn observe(
        &mut self,
        files: &mut Files,
        number: u64,
        (value, now): (u64, Tick),
        source: Source,
        state: &State,
    ) {
        let first = match source {
            Source::Private(file, of_file) => {
                let values = files.now(file, of_file);
                files.mark_used(file, of_file);
                values
            }
            _ => vec![0],
        };
        let is_certain = state.words.len() == 1 && state.words[0] == Word::Written(value);
        let is_fresh = state.words.contains(&Word::Fresh) && first.contains(&value);
        if is_certain || state.words == [Word::Fresh] && is_fresh && state.offered.is_none() {
            return;
        }
        // The page was reclaimed after an offer.
        let is_reclaimed = state.offered.is_some() && source == Source::Zero && value == 0;
        let copied_since = self.copied_since();
        let page = self.pages.entry(number).or_insert_with(|| Page::fresh(0));
        let offered = page.offered;
        page.forget_before(now, now, copied_since);
        let word = if is_fresh || is_reclaimed { Word::Fresh } else { Word::Written(value) };
        page.contents.push(Content::new(word, now));
        // A read does not take the offer back.
        page.offered = offered.filter(|_| word != Word::Fresh);
    }

    /// Returns the words that a read may find.
    pub(super) fn values(&self, files: &Files, page: u64, now: Tick) -> Vec<u64> {
        self.state(page, now, &[]).values(files, now)
    }

    /// Returns the pages that may have been written.
    pub(super) fn written(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().copied()
    }

    /// Returns `true` if a page may be unmapped, because its word is also stored elsewhere.
    pub(super) fn may_be_absent(&self, page: u64, now: Tick) -> bool {
        let state = self.state(page, now, &[]);
        let is_own = |source: &Source| matches!(source, Source::Zero | Source::Private(..));
        let is_offered = state.offered.is_some() && state.sources.contains(&Source::Zero);
        state.words.contains(&Word::Fresh) || is_offered || !state.sources.iter().all(is_own)
    }

    /// Returns `true` if a change concerns a page, so that the place may have two pages.
    fn is_open(&self, page: u64, now: Tick) -> bool {
        let may_be_nothing = || self.state(page, now, &[]).may_be_nothing();
        self.changes.iter().any(|active| match &active.change {
            Change::Map { range, .. }
            | Change::Unmap(range)
            | Change::Discard(range)
            | Change::Offer(range)
            | Change::Grow(range) => range.contains(&page),
            Change::Move { from, to } => from.contains(&page) || to.contains(&page),
            Change::MapAnywhere { .. } => may_be_nothing(),
            Change::Truncate { .. } | Change::Fork => false,
        })
    }
}

/// The possible contents, including those of changes in progress, except for the changes in `skip`.
impl ProcessModel {
    fn in_progress<'s>(&'s self, skip: &'s [u64]) -> impl Iterator<Item = &'s ActiveChange> {
        self.changes.iter().filter(|active| !skip.contains(&active.number))
    }

    /// Returns the layers that may have been in `range` at `since` or later.
    fn layers_since(&self, range: &Range<u64>, since: Tick, skip: &[u64]) -> Vec<Layer> {
        let mut layers = self.layers.since(range, since);
        for active in self.in_progress(skip) {
            let new = |range: &Range<u64>, shown| Layer::new(range.clone(), shown, since);
            let skip = || [skip, &[active.number]].concat();
            let brought = match &active.change {
                Change::Map { range, shown } => vec![new(range, *shown)],
                Change::Unmap(range) => vec![new(range, Shown::Nothing)],
                Change::Grow(range) => self.grown(range, active.at.min(since), &skip()),
                Change::Move { from, to } => {
                    let moving = self.layers_since(from, active.at.min(since), &skip());
                    let moved = moving.iter().filter_map(|layer| layer.moved(from, to));
                    moved.chain([new(from, Shown::Nothing)]).collect()
                }
                _ => Vec::new(),
            };
            layers.extend(brought.iter().filter_map(|layer| layer.clipped(range)));
        }
        layers
    }

    /// Returns the layers of `range` after the mapping below has grown into it.
    fn grown(&self, range: &Range<u64>, since: Tick, skip: &[u64]) -> Vec<Layer> {
        let before = self.layers_since(&(range.start - 1..range.start), since, skip);
        before
            .into_iter()
            .map(|layer| Layer { range: range.clone(), removed: None, ..layer })
            .collect()
    }

    /// Returns the pages in `range` about which more may be known than their mapping shows.
    fn known(&self, range: &Range<u64>, skip: &[u64]) -> BTreeSet<u64> {
        let mut known: BTreeSet<u64> =
            self.pages.range(range.clone()).map(|(&page, _)| page).collect();
        for active in self.in_progress(skip) {
            if let Change::Move { from, to } = &active.change {
                let origins = self.known(from, &[skip, &[active.number]].concat()).into_iter();
                let moved = origins.map(|origin| to.start + (origin - from.start));
                known.extend(moved.filter(|page| to.contains(page) && range.contains(page)));
            }
        }
        known
    }

    /// Returns all contents that are possible at a page at `since` or later.
    fn state(&self, number: u64, since: Tick, skip: &[u64]) -> State {
        let mut state = State::default();
        for layer in self.layers_since(&(number..number + 1), since, skip) {
            state.add_source(Source::of(layer.shown, number));
        }
        if state.sources.is_empty() {
            state.sources.push(Source::Nothing);
        }
        match self.pages.get(&number) {
            Some(page) => state.add_page(page, since),
            None => state.words.push(Word::Fresh),
        }
        for active in self.in_progress(skip) {
            match &active.change {
                Change::Map { range, .. }
                | Change::Unmap(range)
                | Change::Discard(range)
                | Change::Grow(range)
                    if range.contains(&number) =>
                {
                    state.add_word(Word::Fresh);
                }
                Change::Offer(range) if range.contains(&number) => state.offered = Some(active.at),
                Change::Move { from, to } => {
                    if from.contains(&number) {
                        state.add_word(Word::Fresh);
                    }
                    if to.contains(&number) {
                        let origin = from.start + (number - to.start);
                        let skip = [skip, &[active.number]].concat();
                        if from.contains(&origin) {
                            state.add(self.state(origin, active.at.min(since), &skip));
                        } else {
                            state.add_word(Word::Fresh);
                        }
                    }
                }
                Change::MapAnywhere { pages, shown } if state.may_be_nothing() => {
                    // The mapping's page at this place is not known yet.
                    (0..*pages).for_each(|page| state.add_source(Source::of(*shown, page)));
                    state.add_word(Word::Fresh);
                }
                _ => {}
            }
        }
        state
    }

    /// Returns the contents of a copy of the page that was made at `since` or later.
    fn page_since(&self, number: u64, since: Tick, now: Tick) -> Page {
        let state = self.state(number, since, &[]);
        Page {
            contents: state.words.iter().map(|&word| Content::new(word, now)).collect(),
            offered: state.offered.map(|_| now),
            copied: state.copied,
        }
    }
}
