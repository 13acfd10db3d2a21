//! `brig schema`: the shapes of what Brig gives to programs, and what a model is told of it.

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::output::screen::Screen;

/// Prints JSON schemas of what Brig gives to programs, and the tool that models call.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SchemaCommand {
    /// The result of a job: what `brig run --json` prints.
    Result,
    /// What `brig run --json` prints instead when nothing ran.
    Refusal,
    /// The tool `run_python` as an API for models takes it: name, description, schema of its arguments.
    Tool {
        /// How the API wants it: `input_schema` beside the name, in an object `function` with `parameters`, or as the
        /// Model Context Protocol has it, with `inputSchema`.
        #[arg(long, value_enum, default_value_t = ToolForm::InputSchema)]
        form: ToolForm,
    },
}

/// The forms of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ToolForm {
    #[value(name = "input_schema")]
    InputSchema,
    Function,
    Mcp,
}

/// Prints a schema.
pub(crate) fn schema(command: &SchemaCommand, screen: &mut Screen) -> Exit {
    match command {
        SchemaCommand::Refusal => screen.out.text(brig_proto::schema::REFUSAL),
        SchemaCommand::Result => screen.out.text(brig_proto::schema::RESULT),
        SchemaCommand::Tool {
            form: ToolForm::InputSchema,
        } => screen.out.text(brig_proto::tool::TOOL),
        SchemaCommand::Tool { form } => screen.out.json(&tool(*form)),
    }
    Exit::Success
}

fn tool(form: ToolForm) -> Value {
    let tool: Value = serde_json::from_str(brig_proto::tool::TOOL).expect("the committed definition is JSON");
    let (name, description, schema) = (&tool["name"], &tool["description"], &tool["input_schema"]);
    match form {
        ToolForm::InputSchema => tool,
        ToolForm::Function => json!({
            "type": "function",
            "function": {"name": name, "description": description, "parameters": schema},
        }),
        ToolForm::Mcp => json!({"name": name, "description": description, "inputSchema": schema}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_has_the_same_schema_in_its_place() {
        let plain = tool(ToolForm::InputSchema);
        let function = tool(ToolForm::Function);
        assert_eq!(function["function"]["parameters"], plain["input_schema"]);
        assert_eq!(tool(ToolForm::Mcp)["inputSchema"], plain["input_schema"]);
        assert_eq!(function["function"]["name"], "run_python");
    }
}
