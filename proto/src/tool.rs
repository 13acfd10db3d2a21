//! The tool `run_python`: what a model is told of it, and from a call of a model to what is run.
//!
//! A call comes from a model, so nothing in it is trusted: it chooses code, names of files and a time, and no policy, no
//! template and no other limit. Those are the application's.

use prost_types::Duration;
use serde::{Deserialize, Serialize};

use crate::v1::execution_spec::Work;
use crate::v1::{Code, ExecutionSpec, ExpectedOutput, InputSource, Limits};

/// The committed definition: `name`, `description` and `input_schema`.
pub const TOOL: &str = include_str!("../schema/tool.json");

/// A call of the tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    pub code: String,
    /// Names that the application gave its files.
    #[serde(default)]
    pub input_files: Vec<String>,
    /// Paths in the working directory.
    #[serde(default)]
    pub expected_outputs: Vec<String>,
    #[serde(default)]
    pub timeout_seconds: Option<u32>,
}

impl ToolCall {
    /// Makes a request of it. `find` gives the file that the application has under a name.
    ///
    /// Errors: the first name that it has no file for.
    pub fn spec(&self, find: impl Fn(&str) -> Option<InputSource>) -> Result<ExecutionSpec, String> {
        let input = |name: &String| find(name).ok_or_else(|| name.clone());
        let expected = |path: &String| ExpectedOutput {
            path: path.clone(),
            ..ExpectedOutput::default()
        };
        Ok(ExecutionSpec {
            work: Some(Work::Code(Code {
                source: self.code.clone(),
                ..Code::default()
            })),
            inputs: self.input_files.iter().map(input).collect::<Result<_, _>>()?,
            expected_outputs: self.expected_outputs.iter().map(expected).collect(),
            limits: self.timeout_seconds.map(|seconds| Limits {
                timeout: Some(Duration {
                    seconds: seconds.into(),
                    nanos: 0,
                }),
                ..Limits::default()
            }),
            ..ExecutionSpec::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    fn whole() -> ToolCall {
        ToolCall {
            code: "print(1)".to_owned(),
            input_files: vec!["sales.csv".to_owned()],
            expected_outputs: vec!["chart.png".to_owned()],
            timeout_seconds: Some(60),
        }
    }

    #[test]
    fn the_definition_has_each_part_of_a_call_with_its_type_and_description() {
        let tool: Value = serde_json::from_str(TOOL).unwrap();
        assert_eq!(tool["name"], "run_python");
        let properties = tool["input_schema"]["properties"].as_object().unwrap();
        let call = serde_json::to_value(whole()).unwrap();
        let call = call.as_object().unwrap();
        let keys = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(keys(properties), keys(call));
        for (key, value) in call {
            let kind = match value {
                Value::String(_) => "string",
                Value::Array(_) => "array",
                _ => "integer",
            };
            assert_eq!(properties[key]["type"], kind, "{key}");
            assert!(
                properties[key]["description"]
                    .as_str()
                    .is_some_and(|text| text.len() > 20),
                "{key}"
            );
        }
        assert_eq!(tool["input_schema"]["required"], json!(["code"]));
    }

    #[test]
    fn a_call_chooses_code_files_and_time_and_nothing_else() {
        let call: ToolCall = serde_json::from_value(json!({"code": "1"})).unwrap();
        assert_eq!(
            call,
            ToolCall {
                code: "1".to_owned(),
                ..ToolCall::default()
            }
        );
        assert!(serde_json::from_value::<ToolCall>(json!({"code": "1", "policy": "open"})).is_err());
        let found = |name: &str| InputSource {
            name: name.to_owned(),
            ..InputSource::default()
        };
        let spec = whole().spec(|name| Some(found(name))).unwrap();
        assert_eq!(
            (spec.inputs[0].name.as_str(), spec.expected_outputs[0].path.as_str()),
            ("sales.csv", "chart.png")
        );
        assert_eq!(spec.limits.unwrap().timeout.unwrap().seconds, 60);
        assert_eq!((spec.policy.as_str(), spec.template.as_str()), ("", ""));
        assert_eq!(whole().spec(|_| None), Err("sales.csv".to_owned()));
    }
}
