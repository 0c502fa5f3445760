//! A page about the rows of a sweep: lines, heat maps and small multiples, as the reader chooses.
//!
//! Unlike other pages, it contains a script, because a grid has more plots than a page can show at
//! the same time. It refers to no other file.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::cell::Cell;
use crate::render::grouped;
use crate::render::page::{escaped, page, visible};

/// The rows of a sweep as columns, as far as a page needs them.
#[derive(Debug, Default)]
pub(crate) struct Plotted {
    /// The values of each parameter, by their text: a grid may have 100,000 seeds.
    parameters: BTreeMap<String, HashMap<String, Value>>,
    metrics: Vec<String>,
    rows: Vec<Row>,
    errors: Vec<String>,
    errors_total: u64,
    /// Names of `value`, with its unit, if the rows agree on it.
    value_names: Vec<String>,
}

/// The parameters of a row, and its metrics. Metrics that later rows were the first to have are
/// absent at the end.
type Row = (Map<String, Value>, Vec<Value>);

/// The largest number of errors that a page lists.
const ERRORS_MAX: usize = 50;

/// Members of rows that are neither parameters nor results.
const IDENTITY: [&str; 3] = ["cell", "cells", "sweep"];

impl Plotted {
    /// Adds a row.
    pub(crate) fn add(&mut self, row: &str) {
        let members: Map<String, Value> = serde_json::from_str(row).unwrap_or_default();
        let command = members.get("command").and_then(Value::as_str).unwrap_or_default();
        let known = Cell::COMMANDS.iter().find(|(name, _)| *name == command);
        let known = known.map_or(&[][..], |(_, known)| known);
        if let Some(error) = members.get("error") {
            self.errors_total += 1;
            if self.errors.len() < ERRORS_MAX {
                let cell = members.get("cell").cloned().unwrap_or_default();
                self.errors.push(format!("cell {cell}: {}", error.as_str().unwrap_or_default()));
            }
            return;
        }
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        if let (Some(metric), Some(unit)) = (text("metric"), text("unit")) {
            let name = format!("{metric} ({unit})");
            if !self.value_names.contains(&name) {
                self.value_names.push(name);
            }
        }
        let (mut parameters, mut results) = (Map::new(), vec![Value::Null; self.metrics.len()]);
        for (name, value) in &members {
            match (name.as_str(), value) {
                (name, _) if IDENTITY.contains(&name) => {}
                ("set", Value::Object(set)) => {
                    for (path, value) in set {
                        parameters.insert(path.clone(), value.clone());
                    }
                }
                ("part" | "command", value) => {
                    parameters.insert(name.clone(), value.clone());
                }
                (name, value) if known.contains(&name) => {
                    parameters.insert(name.to_owned(), value.clone());
                }
                (name, value) => self.metric(name, value, &mut results),
            }
        }
        for (name, value) in &parameters {
            let values = self.parameters.entry(name.clone()).or_default();
            values.entry(value.to_string()).or_insert_with(|| value.clone());
        }
        self.rows.push((parameters, results));
    }

    fn metric(&mut self, name: &str, value: &Value, results: &mut Vec<Value>) {
        match value {
            Value::Object(inner) => {
                for (inner_name, value) in inner {
                    self.metric(&format!("{name}.{inner_name}"), value, results);
                }
            }
            Value::Number(_) => {
                let at = self.metrics.iter().position(|known| known == name);
                let at = at.unwrap_or_else(|| {
                    self.metrics.push(name.to_owned());
                    results.push(Value::Null);
                    self.metrics.len() - 1
                });
                results[at] = value.clone();
            }
            _ => {}
        }
    }

    /// Returns the page.
    pub(crate) fn page(&self, digest: &str) -> String {
        let count = grouped(self.rows.len() as u64);
        let mut body = format!("<p>{count} rows, digest <code>{}</code></p>\n", &escaped(digest));
        let (axes, constant): (Vec<_>, Vec<_>) =
            self.parameters.iter().partition(|(_, values)| values.len() > 1);
        let same = |(name, values): &(&String, &HashMap<String, Value>)| {
            let value = values.values().next().map(|value| match value {
                Value::String(text) => visible(text),
                value => escaped(&value.to_string()),
            });
            format!("<dt>{}<dd>{}\n", visible(name), value.unwrap_or_default())
        };
        body += &format!(
            "<details><summary>the same in all rows</summary><dl>{}</dl></details>\n",
            constant.iter().map(same).collect::<String>()
        );
        body += &self.error_list();
        if axes.is_empty() || self.metrics.is_empty() {
            body += "<p>All rows have the same parameters, so there is nothing to plot.</p>\n";
            return page("Sweep", &body);
        }
        // `<` would end the script, or begin markup.
        let data = self.data(&axes).to_string().replace('<', "\\u003c");
        body += &format!(
            "<style>{STYLE}</style>\n<div id=\"controls\"></div>\n\
             <details><summary>filter</summary><div id=\"filters\"></div></details>\n\
             <noscript><p class=\"bad\">The plots need JavaScript.</p></noscript>\n\
             <p><small id=\"note\"></small></p>\n<div id=\"panels\" class=\"plots\"></div>\n\
             <script id=\"data\" type=\"application/json\">{data}</script>\n\
             <script>{SCRIPT}</script>\n"
        );
        page("Sweep", &body)
    }

    fn error_list(&self) -> String {
        if self.errors_total == 0 {
            return String::new();
        }
        let items: String =
            self.errors.iter().map(|error| format!("<li>{}\n", visible(error))).collect();
        let count = format!("<b class=\"bad\">{} errors</b>", grouped(self.errors_total));
        format!("<details><summary>{count}</summary><ul>{items}</ul></details>\n")
    }

    /// Returns the data for the script: the axes, the metrics, and for each row the indices of its
    /// values on the axes, and its metrics.
    fn data(&self, axes: &[(&String, &HashMap<String, Value>)]) -> Value {
        let axes: Vec<Axis> = axes
            .iter()
            .map(|(name, values)| {
                let is_partial = self.rows.iter().any(|(own, _)| !own.contains_key(*name));
                Axis::new(name, values, is_partial)
            })
            .collect();
        let row = |(own, results): &Row| -> Value {
            let indices = axes.iter().map(|axis| json!(axis.index(own)));
            let absent = (results.len()..self.metrics.len()).map(|_| Value::Null);
            indices.chain(results.iter().cloned()).chain(absent).collect()
        };
        let mut labels = Map::new();
        if let [name] = &self.value_names[..] {
            labels.insert("value".to_owned(), name.as_str().into());
        }
        let parameters: Vec<_> =
            axes.iter().map(|axis| json!({"name": axis.name, "values": axis.values})).collect();
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        json!({"parameters": parameters, "metrics": self.metrics, "labels": labels, "rows": rows})
    }
}

/// A parameter with several values.
struct Axis {
    name: String,
    /// The values: numbers in ascending order, or texts in alphabetical order.
    values: Vec<Value>,
    /// The index of each value, by its text.
    indices: HashMap<String, usize>,
}

impl Axis {
    fn new(name: &str, values: &HashMap<String, Value>, is_partial: bool) -> Self {
        let mut values: Vec<_> = values.values().cloned().collect();
        let number = |value: &Value| value.as_f64().unwrap_or(f64::INFINITY);
        values.sort_by(|one, other| {
            let texts = || one.to_string().cmp(&other.to_string());
            number(one).total_cmp(&number(other)).then_with(texts)
        });
        // The value of rows of a grid without this parameter.
        values.extend(is_partial.then(|| ABSENT.into()));
        let indices = (0..).zip(&values).map(|(index, value)| (value.to_string(), index)).collect();
        Self { name: name.to_owned(), values, indices }
    }

    fn index(&self, row: &Map<String, Value>) -> Option<usize> {
        let value = row.get(&self.name).cloned().unwrap_or_else(|| ABSENT.into());
        self.indices.get(&value.to_string()).copied()
    }
}

const ABSENT: &str = "–";

const SCRIPT: &str = include_str!("page.js");

const STYLE: &str = "\
#controls{display:flex;flex-wrap:wrap;gap:.4rem 1.2rem;margin:1rem 0}\
#controls label{white-space:nowrap}select{font:inherit;max-width:14rem}\
#filters{display:flex;flex-wrap:wrap;gap:.5rem}\
fieldset{border:1px solid var(--line);border-radius:4px;max-height:10rem;overflow:auto}\
fieldset label{display:inline-block;margin-right:.9rem}\
.key{grid-column:1/-1;margin:0}.key span{margin-right:1.2rem;white-space:nowrap}\
.key i{display:inline-block;width:.75em;height:.75em;margin-right:.4em}\
#panels svg text{font:13px system-ui,sans-serif;fill:currentColor}\
#panels svg .axis{opacity:.75}#panels svg .inside{font-size:12px;fill:revert-layer}\
#panels svg .grid{stroke:currentColor;opacity:.15}\
figure{min-width:0}figcaption{overflow-wrap:anywhere;font-weight:600}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_neither_markup_nor_script() {
        let mut plotted = Plotted::default();
        for design in ["</script><b>", "shootdown"] {
            let row = json!({"cell": 0, "command": "replay", "design": design, "seed": 1,
                             "time_ns": 5, "recording": "<i>"});
            plotted.add(&row.to_string());
        }
        plotted.add(&json!({"cell": 2, "command": "replay", "error": "<u>"}).to_string());
        let page = plotted.page("00");
        for markup in ["</script><b>", "<i>", "<u>"] {
            assert!(!page.contains(markup), "{markup}");
        }
        assert!(page.contains("\\u003c/script>") && page.contains("&lt;u&gt;"));
    }

    #[test]
    fn rows_become_indices_and_metrics() {
        let mut plotted = Plotted::default();
        for (cpus, value) in [(8, 1.5), (2, 3.0)] {
            let row = json!({"cell": 0, "command": "reproduce", "cpus": cpus, "value": value,
                             "metric": "time", "unit": "us", "set": {"tlb.walk_ns": cpus}});
            plotted.add(&row.to_string());
        }
        let page = plotted.page("00");
        let data = page.split("application/json\">").nth(1).and_then(|it| it.split("</").next());
        let data: Value = serde_json::from_str(data.expect("data")).expect("JSON");
        assert_eq!(
            data,
            json!({"parameters": [{"name": "cpus", "values": [2, 8]},
                                  {"name": "tlb.walk_ns", "values": [2, 8]}],
                   "metrics": ["value"], "labels": {"value": "time (us)"},
                   "rows": [[1, 1, 1.5], [0, 0, 3.0]]})
        );
    }
}
