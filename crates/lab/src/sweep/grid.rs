//! A grid: the product of the values of its axes.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use super::spec::SpecError;

/// The largest number of values of an axis, and of cells of a sweep. Larger numbers are mistakes.
pub(super) const VALUES_MAX: u64 = 1_000_000;

/// The product of axes. The last axis varies fastest.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    command: String,
    axes: Vec<Axis>,
}

/// A parameter and its values, at least one.
#[derive(Clone, Debug)]
struct Axis {
    /// The name of the parameter. Parameters of the machine begin with [`SET`].
    name: String,
    values: Vec<Value>,
}

/// The start of the names of a machine's parameters.
const SET: &str = "set.";

impl Grid {
    /// Creates a grid of a command whose parameters are `known`, in the order of the axes.
    pub(super) fn new(
        command: String,
        known: &[&str],
        mut given: Map<String, Value>,
    ) -> Result<Self, SpecError> {
        let mut axes = Vec::new();
        for &name in known {
            match (name, given.remove(name)) {
                (_, None) => {}
                ("set", Some(Value::Object(set))) => {
                    // Sorted by name, because the order in a file must not matter.
                    for (path, value) in BTreeMap::from_iter(set) {
                        axes.push(Axis::new(format!("{SET}{path}"), value)?);
                    }
                }
                ("set", Some(_)) => return Err(SpecError::NotATable("set".to_owned())),
                (_, Some(value)) => axes.push(Axis::new(name.to_owned(), value)?),
            }
        }
        if let Some(name) = given.keys().next() {
            let known = known.join(", ");
            return Err(SpecError::UnknownKey { name: name.clone(), of: command, known });
        }
        Ok(Self { command, axes })
    }

    /// Adds an axis of the numbers from 1 to `count`, which varies fastest.
    pub(super) fn push_parts(&mut self, name: &str, count: u64) {
        let values = (1..=count).map(Value::from).collect();
        self.axes.push(Axis { name: name.to_owned(), values });
    }

    /// Returns the values of a parameter, or none if the grid does not have it.
    pub(super) fn values(&self, name: &str) -> &[Value] {
        let axis = self.axes.iter().find(|axis| axis.name == name);
        axis.map_or(&[], |axis| &axis.values)
    }

    /// Returns the number of cells, or `None` if it is above [`VALUES_MAX`].
    pub(super) fn len(&self) -> Option<u64> {
        let product = self
            .axes
            .iter()
            .try_fold(1_u64, |product, axis| product.checked_mul(axis.values.len() as u64));
        product.filter(|&cells| cells <= VALUES_MAX)
    }

    /// Returns the parameters of a cell, with the command among them.
    pub(super) fn cell(&self, mut number: u64) -> Map<String, Value> {
        let mut indices = vec![0; self.axes.len()];
        for (index, axis) in indices.iter_mut().zip(&self.axes).rev() {
            let count = axis.values.len() as u64;
            *index = (number % count) as usize;
            number /= count;
        }
        let values =
            self.axes.iter().zip(indices).map(|(axis, at)| (axis, axis.values[at].clone()));
        self.with_values(values)
    }

    /// Returns the first cell, and one cell for each other value of each axis, so that every value
    /// can be checked.
    pub(super) fn samples(&self) -> impl Iterator<Item = Map<String, Value>> {
        let others = self.axes.iter().enumerate().flat_map(move |(varied, axis)| {
            (1..axis.values.len()).map(move |at| {
                let index = |axis| if axis == varied { at } else { 0 };
                let axes = self.axes.iter().enumerate();
                self.with_values(
                    axes.map(|(number, axis)| (axis, axis.values[index(number)].clone())),
                )
            })
        });
        std::iter::once(self.cell(0)).chain(others)
    }

    fn with_values<'a>(
        &self,
        values: impl Iterator<Item = (&'a Axis, Value)>,
    ) -> Map<String, Value> {
        let (mut cell, mut set) = (Map::new(), Map::new());
        cell.insert("command".to_owned(), self.command.clone().into());
        for (axis, value) in values {
            match axis.name.strip_prefix(SET) {
                Some(path) => set.insert(path.to_owned(), value),
                None => cell.insert(axis.name.clone(), value),
            };
        }
        if !set.is_empty() {
            cell.insert("set".to_owned(), set.into());
        }
        cell
    }
}

impl Axis {
    fn new(name: String, value: Value) -> Result<Self, SpecError> {
        let values = match value {
            Value::Array(values) => values,
            Value::Object(range) => self::range(&name, &range)?,
            value => vec![value],
        };
        let is_scalar = |value: &Value| !matches!(value, Value::Array(_) | Value::Object(_));
        if values.is_empty() || !values.iter().all(is_scalar) {
            return Err(SpecError::NoValues(name));
        }
        // A value that is written twice would be computed twice.
        let mut seen = HashSet::new();
        let values = values.into_iter().filter(|value| seen.insert(value.to_string())).collect();
        Ok(Self { name, values })
    }
}

/// Returns the numbers of a range: `{ from, to }`, with `step` or `times`.
fn range(name: &str, range: &Map<String, Value>) -> Result<Vec<Value>, SpecError> {
    let bad = || SpecError::BadRange(name.to_owned());
    let number = |key: &str| match range.get(key) {
        None => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(bad),
    };
    let is_known = |key: &String| ["from", "to", "step", "times"].contains(&key.as_str());
    let (Some(from), Some(to), true) = (number("from")?, number("to")?, range.keys().all(is_known))
    else {
        return Err(bad());
    };
    let next = |value: u64| match (number("step")?, number("times")?) {
        (None, None) => Ok(value.checked_add(1)),
        (Some(step @ 1..), None) => Ok(value.checked_add(step)),
        (None, Some(times @ 2..)) if from > 0 => Ok(value.checked_mul(times)),
        _ => Err(bad()),
    };
    let (mut values, mut at) = (Vec::new(), Some(from));
    while let Some(value) = at.filter(|&value| value <= to) {
        if values.len() as u64 == VALUES_MAX {
            return Err(SpecError::TooManyCells);
        }
        values.push(value.into());
        at = next(value)?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn grid(given: Value) -> Result<Grid, SpecError> {
        let Value::Object(given) = given else { panic!("an object") };
        Grid::new("replay".to_owned(), &["recording", "set", "cpus", "seed"], given)
    }

    #[test]
    fn last_axis_varies_fastest() {
        let given = json!({"seed": [7, 8], "cpus": {"from": 2, "to": 9, "times": 2},
                           "set": {"tlb.walk_ns": [1, 2.5]}, "recording": "a"});
        let grid = grid(given).unwrap();
        assert_eq!(grid.len(), Some(12));
        let cells: Vec<_> = (0..12).map(|number| Value::from(grid.cell(number))).collect();
        assert_eq!(
            cells[0],
            json!({"command": "replay", "recording": "a", "set": {"tlb.walk_ns": 1}, "cpus": 2,
                   "seed": 7})
        );
        assert_eq!(cells[1]["seed"], 8);
        assert_eq!((&cells[5]["cpus"], &cells[5]["seed"]), (&json!(8), &json!(8)));
        assert_eq!(cells[6]["set"]["tlb.walk_ns"], 2.5);
        assert_eq!(grid.samples().count(), 1 + 1 + 2 + 1);
    }

    #[test]
    fn values_are_scalars_lists_or_ranges() {
        let count = |value: Value| {
            grid(json!({ "cpus": value })).ok().and_then(|grid| grid.len()).unwrap_or(0)
        };
        assert_eq!(count(json!(4)), 1);
        assert_eq!(count(json!([4, 4, 8])), 2);
        assert_eq!(count(json!({"from": 1, "to": 10, "step": 4})), 3);
        assert_eq!(count(json!({"from": 5, "to": u64::MAX, "times": 1_u64 << 40})), 2);
        for bad in [
            json!([]),
            json!([[1]]),
            json!({}),
            json!({"from": 1}),
            json!({"from": 3, "to": 2}),
            json!({"from": 0, "to": 2, "times": 2}),
            json!({"from": 1, "to": 2, "step": 0}),
            json!({"from": 1, "to": 2, "step": 1, "times": 2}),
            json!({"from": 1, "to": 9, "by": 2}),
            json!({"from": 1, "to": u64::MAX}),
        ] {
            assert_eq!(count(bad.clone()), 0, "{bad}");
        }
    }
}
