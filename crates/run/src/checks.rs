//! The contents of memory, compared with the model of them.

use std::collections::BTreeMap;

use shootdown_program::StepError;
use shootdown_program::interpreter::{MemoryHost as _, SpaceOf};
use shootdown_program::operation::FileId;
use shootdown_sim::{PageFault, Touch};
use shootdown_vm::{
    self as vm, Backing, Format as _, PAGE_BYTES, Place, Protection, Sharing, X86_64,
};

use crate::kernel::{SimKernel, SimProcess, UNNUMBERED};

/// Accesses.
impl SimKernel {
    /// Attempts an access, after it has faulted `faults` times.
    pub(crate) fn touch_checked(
        &self,
        process: &SimProcess,
        address: u64,
        touch: Touch,
        faults: u32,
    ) -> Result<u64, PageFault> {
        if self.contents.is_none() {
            return self.sim().touch(address, touch);
        }
        let (page, is_write) = (address / PAGE_BYTES, matches!(touch, Touch::Write(_)));
        let touched = self.sim().touch_with(address, touch, |word| {
            self.with_model(process, |model, memory| {
                if !is_write {
                    return model.read(memory, page, word);
                }
                if faults != 0 {
                    model.write_ends(memory, page);
                }
                model.wrote(memory, page, word);
            });
        });
        if touched.is_err() && is_write && faults == 0 {
            self.with_model(process, |model, memory| model.write_begins(memory, page));
        }
        touched
    }

    /// Gives up an access that has faulted.
    pub(crate) fn give_up(&self, process: &SimProcess, address: u64, touch: Touch) {
        if matches!(touch, Touch::Write(_)) {
            let page = address / PAGE_BYTES;
            self.with_model(process, |model, memory| model.write_ends(memory, page));
        }
    }
}

/// The end.
impl SimKernel {
    /// Checks all pages of a process that has no thread any more.
    pub(crate) fn check_at_end(&self, process: &SimProcess) {
        self.with_model(process, |model, memory| {
            model.end_process(memory, &self.pages_of(process.space()));
        });
    }

    /// Checks every page of a numbered file that was ever used. Call this on a thread, when no
    /// process is left.
    ///
    /// # Errors
    ///
    /// If there is no memory for that.
    pub(crate) fn check_files(&self) -> Result<(), StepError> {
        let Some(contents) = &self.contents else { return Ok(()) };
        let used = contents.borrow().file_pages();
        for (file, page) in used.into_iter().filter(|(file, _)| *file < UNNUMBERED) {
            let word = self.content_of(FileId(file as u32), page)?;
            contents.borrow_mut().end_file(file, page, word);
        }
        Ok(())
    }

    /// The content of a page of a file. The page is read in if necessary.
    fn content_of(&self, file: FileId, page: u64) -> Result<u64, StepError> {
        let space = self.new_space()?;
        let (_, file) = self.file(Some(file));
        let backing = Backing::File { file, first_page: page };
        let place = Place::Anywhere { length: PAGE_BYTES };
        let start = space.map(place, Protection::READ, Sharing::Shared, backing)?;
        loop {
            space.fault(start, vm::Access::Read)?;
            // Before simulated time passes: the page may be reclaimed again.
            if let Some((_, &word)) = self.pages_of(&space).first_key_value() {
                space.exit();
                return Ok(word);
            }
        }
    }

    /// The pages in the tables of a space, with their contents.
    fn pages_of(&self, space: &SpaceOf<Self>) -> BTreeMap<u64, u64> {
        let frame = |entry| X86_64::as_leaf(entry).map(|leaf| leaf.frame.0);
        let pages = self.sim().pages_below(space.root().0 / PAGE_BYTES, frame);
        let content = |(address, frame)| (address / PAGE_BYTES, self.sim().page_content(frame));
        pages.into_iter().map(content).collect()
    }
}
