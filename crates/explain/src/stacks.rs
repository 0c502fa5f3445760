//! The call stacks of a recording.

use std::collections::HashMap;

use shootdown_recording::record::{Frame, FrameId, Layer};

/// The calls by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stacks {
    /// Each call with its caller. Number 1 comes first.
    frames: Vec<(FrameId, Frame)>,
}

impl Stacks {
    /// Adds a call, whose number the reader has checked.
    pub(crate) fn add(&mut self, caller: FrameId, function: Frame) {
        self.frames.push((caller, function));
    }

    /// Names a call that was added without a name.
    pub(crate) fn name(&mut self, frame: FrameId, function: &str, file: &str) {
        let index = (frame.0 as usize).checked_sub(1);
        if let Some((_, call)) = index.and_then(|index| self.frames.get_mut(index)) {
            (call.function, call.file) = (function.to_owned(), file.to_owned());
        }
    }

    /// Returns the calls of a stack, the innermost first, each with its number.
    pub(crate) fn calls(&self, innermost: FrameId) -> impl Iterator<Item = (FrameId, &Frame)> {
        let mut next = innermost;
        std::iter::from_fn(move || {
            let number = next;
            let (caller, frame) = self.frames.get((number.0 as usize).checked_sub(1)?)?;
            next = *caller;
            Some((number, frame))
        })
    }

    /// Returns the names of the kernel's functions in a stack.
    pub(crate) fn kernel_functions(&self, innermost: FrameId) -> impl Iterator<Item = &str> {
        let calls = self.calls(innermost).map(|(_, frame)| frame);
        calls.filter(|frame| frame.layer == Layer::Kernel).map(|frame| &*frame.function)
    }

    /// Returns the calls of the program in a stack.
    pub(crate) fn program(&self, innermost: FrameId) -> Vec<Frame> {
        let calls = self.calls(innermost).map(|(_, frame)| frame);
        calls.filter(|frame| frame.layer == Layer::User).cloned().collect()
    }

    /// Returns a number for the functions of the program in a stack. Stacks that differ in lines
    /// or in the kernel have the same.
    pub(crate) fn site_of(&self, innermost: FrameId, sites: &mut Chains) -> u32 {
        if let Some(site) = sites.by_frame.get(&innermost) {
            return *site;
        }
        let names: Vec<_> = self.program(innermost).into_iter().map(|it| it.function).collect();
        let next = sites.by_names.len() as u32;
        let site = *sites.by_names.entry(names).or_insert(next);
        sites.by_frame.insert(innermost, site);
        site
    }
}

/// The distinct chains of functions of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chains {
    by_frame: HashMap<FrameId, u32>,
    by_names: HashMap<Vec<String>, u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_ignore_lines_and_the_kernel() {
        let mut stacks = Stacks::default();
        let frame = |layer, function: &str, line| {
            let function = function.to_owned();
            Frame { layer, function, file: String::new(), line }
        };
        stacks.add(FrameId::NONE, frame(Layer::User, "main", 1));
        stacks.add(FrameId(1), frame(Layer::Kernel, "do_madvise", 0));
        stacks.add(FrameId::NONE, frame(Layer::User, "main", 2));
        stacks.add(FrameId(3), frame(Layer::Kernel, "do_mprotect_pkey", 0));
        let mut chains = Chains::default();
        let sites = [2, 4, 1].map(|it| stacks.site_of(FrameId(it), &mut chains));
        assert_eq!(sites, [0; 3]);
        assert_eq!(stacks.site_of(FrameId::NONE, &mut chains), 1);
        assert!(stacks.kernel_functions(FrameId(4)).eq(["do_mprotect_pkey"]));
    }
}
