//! What the memory of one process must hold.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use super::files::{Files, Landed};
use super::layers::{Layer, Layers};
use super::place::{Content, Page, Source, State, Word};
use super::{Change, Moment, Shown};

/// The memory of one process.
#[derive(Debug, Default)]
pub(super) struct Memory {
    layers: Layers,
    /// Those of which more is known than what their mapping shows at first.
    pages: BTreeMap<u64, Page>,
    changes: Vec<Begun>,
    next_change: u64,
    /// Pages whose writes were refused, and are about to be tried again.
    faults: Vec<u64>,
}

/// A change that is under way.
#[derive(Clone, Debug)]
struct Begun {
    number: u64,
    at: Moment,
    change: Change,
}

/// Changes.
impl Memory {
    pub(super) fn begin(&mut self, change: Change, now: Moment) -> u64 {
        let number = self.next_change;
        self.next_change += 1;
        self.changes.push(Begun { number, at: now, change });
        number
    }

    pub(super) fn cancel(&mut self, number: u64) {
        self.changes.retain(|begun| begun.number != number);
    }

    pub(super) fn end(&mut self, number: u64, now: Moment) {
        let Some(Begun { at, change, .. }) = self.take(number) else { return };
        match change {
            Change::Map { range, shown } => {
                self.put(&range, vec![Layer::new(range.clone(), shown, now)], at, now);
                self.refresh(&range, BTreeMap::new(), at, now);
            }
            Change::Unmap(range) => {
                self.put(&range, vec![Layer::new(range.clone(), Shown::Nothing, now)], at, now);
                self.refresh(&range, BTreeMap::new(), at, now);
            }
            Change::Discard(range) => self.refresh(&range, BTreeMap::new(), at, now),
            Change::Offer(range) => {
                self.pages.range_mut(range).for_each(|(_, page)| page.offered = Some(now));
            }
            Change::Move { from, to } => self.end_move(&from, &to, at, now),
            Change::Grow(range) => {
                let layers = self.grown(&range, at, &[]);
                let layers = layers.into_iter().map(|layer| Layer { since: now, ..layer });
                self.put(&range, layers.collect(), at, now);
                self.refresh(&range, BTreeMap::new(), at, now);
            }
            Change::MapAnywhere { .. } | Change::Fork => {}
        }
        self.tidy();
    }

    /// A mapping whose address was chosen is at `range`.
    pub(super) fn place(&mut self, number: u64, range: Range<u64>) {
        let begun = self.changes.iter_mut().find(|begun| begun.number == number);
        if let Some(Begun { change, .. }) = begun
            && let Change::MapAnywhere { shown, .. } = *change
        {
            *change = Change::Map { shown: shown.moved(range.start), range };
        }
    }

    fn end_move(&mut self, from: &Range<u64>, to: &Range<u64>, at: Moment, now: Moment) {
        let layers = self.layers_since(from, at, &[]);
        let layers = layers.iter().filter_map(|layer| layer.moved(from, to));
        let layers = layers.map(|layer| Layer { since: now, gone: None, ..layer }).collect();
        let origins: Vec<u64> = self.known(from, &[]).into_iter().collect();
        let page = |origin| (to.start + (origin - from.start), self.page_since(origin, at, now));
        let arrived = origins.into_iter().map(page).filter(|(page, _)| to.contains(page)).collect();
        self.put(from, vec![Layer::new(from.clone(), Shown::Nothing, now)], at, now);
        self.refresh(from, BTreeMap::new(), at, now);
        self.put(to, layers, at, now);
        self.refresh(to, arrived, at, now);
    }

    /// The child of a fork: everything that was here since it began, and may yet be found to have
    /// been.
    pub(super) fn end_fork(&mut self, number: u64, now: Moment) -> Self {
        let at = self.take(number).map_or(now, |begun| begun.at);
        let all = 0..u64::MAX;
        let mut layers = Layers::default();
        let inherited = self.layers_since(&all, at, &[]).into_iter();
        layers.add(inherited.map(|layer| Layer { since: now, gone: None, ..layer }));
        let known = self.known(&all, &[]).into_iter();
        let pages = known.map(|page| (page, self.page_since(page, at, now))).collect();
        // Nobody knows yet where that is.
        let is_somewhere = |begun: &&Begun| matches!(begun.change, Change::MapAnywhere { .. });
        let changes = self.changes.iter().filter(is_somewhere).cloned().collect();
        self.tidy();
        Self { layers, pages, changes, next_change: self.next_change, faults: Vec::new() }
    }

    fn take(&mut self, number: u64) -> Option<Begun> {
        let index = self.changes.iter().position(|begun| begun.number == number)?;
        Some(self.changes.remove(index))
    }

    /// These layers are in `range`, and no others that were there when the change began.
    fn put(&mut self, range: &Range<u64>, layers: Vec<Layer>, begun: Moment, now: Moment) {
        self.layers.replace(range, begun, now, self.copied_since());
        self.layers.add(layers);
    }

    /// The pages in `range` are as at first, or as they arrive, or were written since `begun`.
    fn refresh(
        &mut self,
        range: &Range<u64>,
        mut arrived: BTreeMap<u64, Page>,
        begun: Moment,
        now: Moment,
    ) {
        let copied_since = self.copied_since();
        for (number, page) in self.pages.range_mut(range.clone()) {
            page.forget_before(begun, now, copied_since);
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

    /// Since when something is being copied: what is gone since then is still needed.
    fn copied_since(&self) -> Option<Moment> {
        let copies = self
            .changes
            .iter()
            .filter(|begun| matches!(begun.change, Change::Move { .. } | Change::Fork));
        copies.map(|begun| begun.at).min()
    }

    fn tidy(&mut self) {
        if self.changes.is_empty() {
            self.layers.tidy();
        }
    }
}

/// Accesses.
impl Memory {
    pub(super) fn write_begins(&mut self, page: u64, now: Moment) {
        self.faults.push(page);
        let page = self.pages.entry(page).or_insert_with(|| Page::fresh(now));
        page.copied.get_or_insert(now);
    }

    pub(super) fn write_ends(&mut self, page: u64) {
        if let Some(index) = self.faults.iter().position(|&fault| fault == page) {
            self.faults.swap_remove(index);
        }
    }

    /// Returns whether there is anything that can be written.
    pub(super) fn write(&mut self, files: &mut Files, page: u64, value: u64, now: Moment) -> bool {
        let sources = self.state(page, now, &[]).places();
        let landed = if sources.len() == 1 { Landed::Certainly } else { Landed::Perhaps };
        let is_mapped = !sources.is_empty();
        let mut is_own = false;
        for source in sources {
            match source {
                Source::Shared(file, number) => files.write(file, number, (value, now), landed),
                _ => is_own = true,
            }
        }
        if is_own {
            self.write_own(page, value, landed, now);
        }
        is_mapped
    }

    fn write_own(&mut self, number: u64, value: u64, landed: Landed, now: Moment) {
        let is_open = self.is_open(number, now) || landed == Landed::Perhaps;
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

    /// Returns what may have been read, if that was not.
    pub(super) fn read(
        &mut self,
        files: &mut Files,
        page: u64,
        value: u64,
        now: Moment,
    ) -> Result<(), Vec<u64>> {
        let state = self.state(page, now, &[]);
        let expected = state.values(files, now);
        let result = if expected.contains(&value) { Ok(()) } else { Err(expected) };
        // While something is under way, or where one of several things may be mapped, another CPU
        // may find something else.
        if let [source] = state.places()[..] {
            match source {
                Source::Shared(file, number) => files.settle(file, number, value, now),
                _ if self.is_open(page, now) => {}
                _ => self.settle(files, page, (value, now), source, &state),
            }
        }
        result
    }

    /// It is known what a page of its own holds: it was read. What was wrong is so from now on.
    fn settle(
        &mut self,
        files: &mut Files,
        number: u64,
        (value, now): (u64, Moment),
        source: Source,
        state: &State,
    ) {
        let first = match source {
            Source::Private(file, of_file) => {
                let values = files.now(file, of_file);
                files.note(file, of_file);
                values
            }
            _ => vec![0],
        };
        let is_certain = state.words.len() == 1 && state.words[0] == Word::Written(value);
        let is_fresh = state.words.contains(&Word::Fresh) && first.contains(&value);
        if is_certain || state.words == [Word::Fresh] && is_fresh && state.offered.is_none() {
            return;
        }
        // It has just been discarded, after an offer.
        let is_taken = state.offered.is_some() && source == Source::Zero && value == 0;
        let copied_since = self.copied_since();
        let page = self.pages.entry(number).or_insert_with(|| Page::fresh(0));
        let offered = page.offered;
        page.forget_before(now, now, copied_since);
        let word = if is_fresh || is_taken { Word::Fresh } else { Word::Written(value) };
        page.contents.push(Content::new(word, now));
        // To be read does not take an offer back.
        page.offered = offered.filter(|_| word != Word::Fresh);
    }

    /// What may be read.
    pub(super) fn values(&self, files: &Files, page: u64, now: Moment) -> Vec<u64> {
        self.state(page, now, &[]).values(files, now)
    }

    /// The pages that may have been written.
    pub(super) fn written(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().copied()
    }

    /// Whether a page need not be there, since its contents are to be had elsewhere.
    pub(super) fn may_be_absent(&self, page: u64, now: Moment) -> bool {
        let state = self.state(page, now, &[]);
        let is_own = |source: &Source| matches!(source, Source::Zero | Source::Private(..));
        let is_offered = state.offered.is_some() && state.sources.contains(&Source::Zero);
        state.words.contains(&Word::Fresh) || is_offered || !state.sources.iter().all(is_own)
    }

    /// Whether something is under way at a page, so that there may be two of it.
    fn is_open(&self, page: u64, now: Moment) -> bool {
        let may_be_nothing = || self.state(page, now, &[]).sources.contains(&Source::Nothing);
        self.changes.iter().any(|begun| match &begun.change {
            Change::Map { range, .. }
            | Change::Unmap(range)
            | Change::Discard(range)
            | Change::Offer(range)
            | Change::Grow(range) => range.contains(&page),
            Change::Move { from, to } => from.contains(&page) || to.contains(&page),
            Change::MapAnywhere { .. } => may_be_nothing(),
            Change::Fork => false,
        })
    }
}

/// What may be where, with what is under way, but for the changes in `skip`.
impl Memory {
    fn under_way<'s>(&'s self, skip: &'s [u64]) -> impl Iterator<Item = &'s Begun> {
        self.changes.iter().filter(|begun| !skip.contains(&begun.number))
    }

    /// The layers that may have been in `range` at `since` or later.
    fn layers_since(&self, range: &Range<u64>, since: Moment, skip: &[u64]) -> Vec<Layer> {
        let mut layers = self.layers.since(range, since);
        for begun in self.under_way(skip) {
            let new = |range: &Range<u64>, shown| Layer::new(range.clone(), shown, since);
            let skip = || [skip, &[begun.number]].concat();
            let brought = match &begun.change {
                Change::Map { range, shown } => vec![new(range, *shown)],
                Change::Unmap(range) => vec![new(range, Shown::Nothing)],
                Change::Grow(range) => self.grown(range, begun.at.min(since), &skip()),
                Change::Move { from, to } => {
                    let moving = self.layers_since(from, begun.at.min(since), &skip());
                    let moved = moving.iter().filter_map(|layer| layer.moved(from, to));
                    moved.chain([new(from, Shown::Nothing)]).collect()
                }
                _ => Vec::new(),
            };
            layers.extend(brought.iter().filter_map(|layer| layer.clipped(range)));
        }
        layers
    }

    /// What goes on in `range`.
    fn grown(&self, range: &Range<u64>, since: Moment, skip: &[u64]) -> Vec<Layer> {
        let before = self.layers_since(&(range.start - 1..range.start), since, skip);
        before
            .into_iter()
            .map(|layer| Layer { range: range.clone(), gone: None, ..layer })
            .collect()
    }

    /// The pages in `range` of which more may be known than what their mapping shows.
    fn known(&self, range: &Range<u64>, skip: &[u64]) -> BTreeSet<u64> {
        let mut known: BTreeSet<u64> =
            self.pages.range(range.clone()).map(|(&page, _)| page).collect();
        for begun in self.under_way(skip) {
            if let Change::Move { from, to } = &begun.change {
                let origins = self.known(from, &[skip, &[begun.number]].concat()).into_iter();
                let moved = origins.map(|origin| to.start + (origin - from.start));
                known.extend(moved.filter(|page| to.contains(page) && range.contains(page)));
            }
        }
        known
    }

    /// All that may have been at a page at `since` or later.
    fn state(&self, number: u64, since: Moment, skip: &[u64]) -> State {
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
        for begun in self.under_way(skip) {
            match &begun.change {
                Change::Map { range, .. } | Change::Unmap(range) | Change::Discard(range)
                    if range.contains(&number) =>
                {
                    state.add_word(Word::Fresh);
                }
                Change::Grow(range) if range.contains(&number) => state.add_word(Word::Fresh),
                Change::Offer(range) if range.contains(&number) => state.offered = Some(begun.at),
                Change::Move { from, to } => {
                    if from.contains(&number) {
                        state.add_word(Word::Fresh);
                    }
                    if to.contains(&number) {
                        let origin = from.start + (number - to.start);
                        let skip = [skip, &[begun.number]].concat();
                        if from.contains(&origin) {
                            state.add(self.state(origin, begun.at.min(since), &skip));
                        } else {
                            state.add_word(Word::Fresh);
                        }
                    }
                }
                Change::MapAnywhere { pages, shown } if state.may_be_nothing() => {
                    // Which of them is here is not known yet.
                    (0..*pages).for_each(|page| state.add_source(Source::of(*shown, page)));
                    state.add_word(Word::Fresh);
                }
                _ => {}
            }
        }
        state
    }

    /// What a copy of the page holds that was made at `since` or later.
    fn page_since(&self, number: u64, since: Moment, now: Moment) -> Page {
        let state = self.state(number, since, &[]);
        Page {
            contents: state.words.iter().map(|&word| Content::new(word, now)).collect(),
            offered: state.offered.map(|_| now),
            copied: state.copied,
        }
    }
}
