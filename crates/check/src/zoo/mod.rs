//! The zoo: bugs that others shipped, each as a program of a few lines, beside its faultless twin.
//!
//! What is kept of a bug is its race, and nothing of the kernel around it. Each has a flag: the
//! twin does what the fix does, and is otherwise the same. The search must find the one wrong, in
//! the way that the story says, and go through all of the other.

mod frames;
mod hardware;
mod presence;
mod reclaim;
mod tables;
mod waiting;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use crate::explore::Scene;
use crate::hardware::{Entry, Keeps, Wrong};
use crate::profile::Profile;
use crate::world::{
    CheckWord, Outcome, PageTables, Setting, System, Upper, World, fence, run, with_world,
};

/// A bug.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// What it is called here.
    pub name: &'static str,
    /// Where it was.
    pub source: &'static str,
    /// What went wrong, in a sentence or two.
    pub story: &'static str,
    /// The architecture on which it shows.
    pub profile: Profile,
    /// What is found.
    pub finds: fn(Wrong) -> bool,
    spaces: usize,
    words: &'static [&'static str],
    cpus: &'static [fn(&Stage)],
    handler: fn(&Stage),
}

/// Whether a rule is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it was shipped.
    Faulty,
    /// As it was mended.
    Mended,
}

impl Bug {
    /// Most bugs show on x86, with one space, and CPUs that drop everything when they are asked.
    const DEFAULT: Self = Self {
        name: "",
        source: "",
        story: "",
        profile: Profile::X86,
        finds: uses_dead,
        spaces: 1,
        words: &[],
        cpus: &[],
        handler: drops_everything,
    };

    /// All of them.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        let kinds = [
            presence::BUGS,
            tables::BUGS,
            reclaim::BUGS,
            frames::BUGS,
            waiting::BUGS,
            hardware::BUGS,
        ];
        kinds.into_iter().flatten()
    }

    /// One of the two.
    #[must_use]
    pub const fn scene(&self, variant: Variant) -> BugScene<'_> {
        BugScene { bug: self, variant }
    }
}

/// A bug, or its twin, to be run.
#[derive(Clone, Copy, Debug)]
pub struct BugScene<'b> {
    bug: &'b Bug,
    variant: Variant,
}

impl Scene for BugScene<'_> {
    fn run(&self, setting: Setting<'_>) -> Outcome {
        let Bug { cpus, .. } = self.bug;
        let set_up = |world: &World| Stage::new(world, self.bug, self.variant);
        run(setting, cpus.len(), set_up)
    }
}

/// What a bug is played on: spaces, words, and interrupts that are waited for as they should be.
#[derive(Debug)]
pub(crate) struct Stage {
    spaces: Vec<PageTables>,
    words: Vec<(&'static str, CheckWord)>,
    /// How often each CPU was asked.
    asked: Vec<CheckWord>,
    /// And how often it has answered.
    answered: Vec<CheckWord>,
    cpus: &'static [fn(&Self)],
    handler: fn(&Self),
    variant: Variant,
}

impl System for Stage {
    fn run(&self, cpu: usize) {
        self.cpus[cpu](self);
    }
    fn interrupt(&self, cpu: usize) {
        let asked = self.asked[cpu].load(Acquire);
        (self.handler)(self);
        self.answered[cpu].store(asked, Release);
    }
}

#[expect(clippy::unused_self, reason = "programs say all that they do by their stage")]
impl Stage {
    fn new(world: &World, bug: &Bug, variant: Variant) -> Self {
        let Bug { spaces, words, cpus, handler, .. } = *bug;
        let counters = |name: &str| -> Vec<_> {
            (0..cpus.len()).map(|cpu| CheckWord::named(0, || format!("{name} {cpu}"))).collect()
        };
        Self {
            spaces: (0..spaces).map(|_| PageTables::new(world)).collect(),
            words: words
                .iter()
                .map(|&name| (name, CheckWord::named(0, || name.to_owned())))
                .collect(),
            asked: counters("what is asked of CPU"),
            answered: counters("the answer of CPU"),
            cpus,
            handler,
            variant,
        }
    }

    fn is_mended(&self) -> bool {
        self.variant == Variant::Mended
    }

    fn cpu(&self) -> usize {
        with_world(World::cpu)
    }

    /// The word of this name, which is in the bug's list of words.
    fn word(&self, name: &str) -> &CheckWord {
        let (_, word) = self.words.iter().find(|(it, _)| *it == name).expect("a word of the bug");
        word
    }

    fn space(&self, index: usize) -> &PageTables {
        &self.spaces[index]
    }

    /// Takes a page away, for everybody to see, and returns its frame.
    fn take(&self, space: usize, page: usize) -> usize {
        let entry = self.space(space).swap(page, Entry::EMPTY);
        fence();
        entry.target()
    }

    /// Takes a table out of a root, and returns its number.
    fn unhook(&self, space: usize, slot: usize) -> usize {
        self.space(space).unhook(slot).expect("each is unhooked once")
    }

    /// Loads a space, and drops what is there of its tag.
    fn load(&self, space: usize) {
        self.load_under(space, space as u16 + 1, Keeps::Nothing);
    }

    fn load_under(&self, space: usize, tag: u16, keeps: Keeps) {
        let root = self.space(space).root();
        with_world(|world| world.load_root(Some(root), tag, keeps));
    }

    fn load_kernel(&self) {
        with_world(|world| world.load_root(None, 0, Keeps::Everything));
    }

    fn user_mode(&self) {
        with_world(World::stay_in_user_mode);
    }

    fn drop_page(&self, page: usize) {
        with_world(|world| world.drop_pages(|it| it == page, Upper::Kept));
    }

    fn drop_all(&self) {
        with_world(|world| world.drop_tag(None));
    }

    /// Interrupts a CPU.
    fn ask(&self, cpu: usize) -> u64 {
        let ticket = self.asked[cpu].fetch_add(1, AcqRel) + 1;
        with_world(|world| world.ring(cpu));
        ticket
    }

    /// Interrupts a CPU, and waits until it has answered that.
    fn ask_and_wait(&self, cpu: usize) {
        let ticket = self.ask(cpu);
        self.wait_until(|| self.answered[cpu].load(Acquire) >= ticket);
    }

    fn wait_until(&self, is_so: impl Fn() -> bool) {
        with_world(|world| world.wait_until(is_so));
    }

    /// Waits until another CPU has come so far.
    fn wait_for(&self, word: &str) {
        self.wait_until(|| self.word(word).load(Acquire) != 0);
    }

    /// Tells another CPU that one has come so far.
    fn come_to(&self, word: &str) {
        self.word(word).store(1, Release);
        fence();
    }

    /// Says that nobody uses a page as it was.
    fn is_flushed(&self, space: usize, page: usize) {
        let root = self.space(space).root();
        with_world(|world| world.flush_is_done(world.outdated(root, |it| it == page)));
    }

    fn reuse(&self, frame: usize) {
        with_world(|world| world.reuse_frame(frame));
    }

    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        with_world(World::mask);
        let result = f();
        with_world(World::unmask);
        result
    }
}

fn nothing(_: &Stage) {}

fn drops_everything(stage: &Stage) {
    stage.drop_all();
}

const fn uses_dead(wrong: Wrong) -> bool {
    matches!(wrong, Wrong::UsesFlushed { .. } | Wrong::UsesReused { .. })
}

const fn walks_freed(wrong: Wrong) -> bool {
    matches!(wrong, Wrong::WalksFreed { .. })
}

const fn uses_foreign(wrong: Wrong) -> bool {
    matches!(wrong, Wrong::UsesForeign { .. })
}

const fn interrupts_for_nothing(wrong: Wrong) -> bool {
    matches!(wrong, Wrong::InterruptedForNothing { .. })
}

const fn is_stuck(wrong: Wrong) -> bool {
    matches!(wrong, Wrong::Stuck)
}
