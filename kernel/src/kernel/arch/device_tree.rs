//! Reads the device tree ("Devicetree Specification", chapter 5).
//!
//! A tree consists of big-endian words of 32 bits: a header, and a sequence of nodes, each with its
//! name, properties, children and an end mark. The names of properties are strings at the end.

#![expect(unsafe_code, reason = "reads memory that firmware has filled")]

/// The first word of a tree.
const MAGIC: u32 = 0xd00d_feed;
/// Indices of words of the header.
const TOTAL_BYTES: usize = 1;
const NODES_OFFSET_BYTES: usize = 2;
#[cfg(target_arch = "riscv64")]
const NAMES_OFFSET_BYTES: usize = 3;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOTHING: u32 = 4;

/// The words of the tree at `tree`; `None` if there is no tree.
///
/// # Safety
///
/// `tree` must point to mapped memory for the length that the tree's header has, and the memory
/// must not change.
pub(super) unsafe fn words(tree: *const u32) -> Option<&'static [u32]> {
    // SAFETY: the caller's promise.
    let header = unsafe { core::slice::from_raw_parts(tree, TOTAL_BYTES + 1) };
    let words = u32::from_be(header[TOTAL_BYTES]) as usize / 4;
    // SAFETY: the caller's promise, for the length in the header.
    (u32::from_be(header[0]) == MAGIC).then(|| unsafe { core::slice::from_raw_parts(tree, words) })
}

/// A part of a tree.
enum Part<'t> {
    /// The beginning of a node, with the first two words of its name.
    Node([u32; 2]),
    /// A property: the place of its name among the names, and its value.
    #[cfg_attr(not(target_arch = "riscv64"), expect(dead_code, reason = "needs no names"))]
    Property { name_at: usize, value: &'t [u32] },
}

/// The parts of a tree, in order.
fn parts(tree: &[u32]) -> impl Iterator<Item = Part<'_>> {
    let at = u32::from_be(tree[NODES_OFFSET_BYTES]) as usize / 4;
    let mut rest = tree.get(at..).unwrap_or_default();
    core::iter::from_fn(move || {
        loop {
            let (kind, after) = rest.split_first()?;
            let part;
            (part, rest) = match u32::from_be(*kind) {
                BEGIN_NODE => {
                    // A zero byte in the last word of the name ends it.
                    let words = 1 + after.iter().position(|word| word.to_ne_bytes()[3] == 0)?;
                    (Some(Part::Node([*after.first()?, *after.get(1)?])), after.get(words..)?)
                }
                PROPERTY => {
                    let [bytes, name] =
                        [u32::from_be(*after.first()?), u32::from_be(*after.get(1)?)];
                    let (value, after) = after.get(2..)?.split_at_checked(words_of(bytes))?;
                    (Some(Part::Property { name_at: name as usize, value }), after)
                }
                END_NODE | NOTHING => (None, after),
                _ => return None,
            };
            if part.is_some() {
                return part;
            }
        }
    })
}

const fn words_of(bytes: u32) -> usize {
    bytes.div_ceil(4) as usize
}

/// The size of memory in bytes: the length in the first property of four words of the first node
/// whose name begins with `memory@`. Returns `None` if the tree differs from QEMU's: one memory
/// node, with an address and a length of two words each, and other properties of other lengths.
pub(super) fn memory_bytes(tree: &[u32]) -> Option<u64> {
    let mut is_memory = false;
    parts(tree).find_map(|part| match part {
        Part::Node(name) => {
            let bytes = [name[0].to_ne_bytes(), name[1].to_ne_bytes()];
            is_memory = bytes.as_flattened().starts_with(b"memory@");
            None
        }
        Part::Property { value: &[_, _, high, low], .. } if is_memory => {
            Some(u64::from(u32::from_be(high)) << 32 | u64::from(u32::from_be(low)))
        }
        Part::Property { .. } => None,
    })
}

/// The value of the first property of this name, in the tree's order of bytes.
#[cfg(target_arch = "riscv64")]
pub(super) fn property<'t>(tree: &'t [u32], name: &str) -> Option<&'t [u32]> {
    // SAFETY: words consist of bytes.
    let bytes =
        unsafe { core::slice::from_raw_parts(tree.as_ptr().cast::<u8>(), size_of_val(tree)) };
    let names = bytes.get(u32::from_be(tree[NAMES_OFFSET_BYTES]) as usize..)?;
    parts(tree).find_map(|part| match part {
        Part::Property { name_at, value } => {
            let found = names.get(name_at..)?.strip_prefix(name.as_bytes())?;
            (found.first() == Some(&0)).then_some(value)
        }
        Part::Node(_) => None,
    })
}
