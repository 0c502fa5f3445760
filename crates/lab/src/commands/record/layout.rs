//! Where the fields of an event are: what the `format` files of tracefs say, and `header_page`.

/// The fields of one kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Which kind: the first field of every event.
    pub(super) id: u16,
    fields: Fields,
}

impl Layout {
    /// Of a `format` file; `None` if it has no number.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
        Some(Self { id, fields: Fields::parse(text) })
    }

    pub(super) fn field(&self, name: &str) -> Option<Field> {
        self.fields.field(name)
    }
}

/// Fields by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields(Vec<(String, Field)>);

impl Fields {
    /// Of every line that describes one; other lines say other things.
    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_field).collect())
    }

    pub(super) fn field(&self, name: &str) -> Option<Field> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, field)| *field)
    }
}

/// Where a field is, in bytes from the event's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) offset: usize,
    pub(super) size: usize,
}

impl Field {
    /// Its bytes; `None` if the event is shorter.
    pub(super) fn bytes(self, event: &[u8]) -> Option<&[u8]> {
        event.get(self.offset..self.offset.checked_add(self.size)?)
    }

    /// As a number without a sign; `None` if the event is shorter, or the field wider than that.
    pub(super) fn number(self, event: &[u8]) -> Option<u64> {
        let bytes = self.bytes(event)?;
        let mut wide = [0; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(wide))
    }

    /// As a number with a sign; `None` as above.
    pub(super) fn signed(self, event: &[u8]) -> Option<i64> {
        let unused = 64_u32.checked_sub(u32::try_from(self.size).ok()?.checked_mul(8)?)?;
        let number = self.number(event)?;
        Some(number.unbounded_shl(unused).cast_signed().unbounded_shr(unused))
    }

    /// What a `__data_loc` field refers to: elsewhere in the event, as long as that one says.
    pub(super) fn referred(self, event: &[u8]) -> Option<&[u8]> {
        let reference = u32::try_from(self.number(event)?).ok()?;
        let (offset, size) = ((reference & 0xffff) as usize, (reference >> 16) as usize);
        Self { offset, size }.bytes(event)
    }
}

/// Of a line such as `field:int common_pid; offset:4; size:4; signed:1;`.
fn parse_field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let name = declaration.split_whitespace().last()?.split('[').next()?;
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", value)) => offset = value.parse().ok(),
            Some(("size", value)) => size = value.parse().ok(),
            _ => {}
        }
    }
    Some((name.to_owned(), Field { offset: offset?, size: size? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: ipi_send_cpumask\nID: 353\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:__data_loc cpumask_t cpumask;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:0;\n\n\
        print fmt: \"cpumask=%s\", __get_cpumask(cpumask)\n";

    #[test]
    fn fields_are_found_by_name_without_their_types_and_lengths() {
        let layout = Layout::parse(FORMAT).expect("a layout");
        assert_eq!(layout.id, 353);
        assert_eq!(layout.field("comm"), Some(Field { offset: 12, size: 16 }));
        assert_eq!(layout.field("cpumask"), Some(Field { offset: 8, size: 4 }));
        assert_eq!(layout.field("fmt"), None);
        assert_eq!(Layout::parse("name: x\n"), None);
    }

    #[test]
    fn numbers_have_the_sign_and_the_width_of_their_fields() {
        let field = Field { offset: 1, size: 4 };
        let event = [9, 0xfe, 0xff, 0xff, 0xff, 9];
        assert_eq!(field.number(&event), Some(0xffff_fffe));
        assert_eq!(field.signed(&event), Some(-2));
        let wide = Field { offset: 0, size: 8 };
        assert_eq!(wide.signed(&[0xff; 8]), Some(-1));
    }

    #[test]
    fn what_lies_outside_the_event_is_none() {
        let event = [0xff; 4];
        assert_eq!(Field { offset: 2, size: 4 }.number(&event), None);
        assert_eq!(Field { offset: usize::MAX, size: 4 }.number(&event), None);
        assert_eq!(Field { offset: 0, size: 4 }.referred(&event), None);
        assert_eq!(Field { offset: 0, size: usize::MAX }.signed(&event), None);
        assert_eq!(Field { offset: 0, size: 16 }.signed(&[0; 16]), None);
    }

    #[test]
    fn a_reference_says_where_and_how_long() {
        let event = [4, 0, 2, 0, b'h', b'i'];
        assert_eq!(Field { offset: 0, size: 4 }.referred(&event), Some(&b"hi"[..]));
    }
}
