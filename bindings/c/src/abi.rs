//! The structs' layout is the recorded one, which `tests/abi.c` prints of the header, too.

use std::fmt::Write;

use crate::exports::ABI_VERSION;
use crate::shown::{CAlternative, CEvent, CToken};
use crate::structs::{
    CChatOptions, CGenerateOptions, CLogitBias, CMessage, CModelInfo, CSchedulerOptions, CSessionOptions,
    CTemplateVariable,
};

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! record {
    ($text:ident, $name:literal, $type:ident: $($field:ident)*) => {
        writeln!($text, "struct {} {}", $name, size_of::<$type>()).unwrap();
        $(writeln!(
            $text,
            "    {} {} {}",
            stringify!($field),
            std::mem::offset_of!($type, $field),
            size_of_field(|value: &$type| &value.$field),
        ).unwrap();)*
    };
}

#[test]
#[cfg(target_pointer_width = "64")]
fn structs_are_laid_out_as_recorded() {
    let mut text = format!("abi {ABI_VERSION}\n");
    record!(text, "smolrun_model_info", CModelInfo: size vocab_size hidden_size num_hidden_layers
        max_position_embeddings parameters bytes bos_token_id has_chat_template is_quantized);
    record!(text, "smolrun_message", CMessage: role content);
    record!(text, "smolrun_template_variable", CTemplateVariable: name text flag);
    record!(text, "smolrun_chat_options", CChatOptions: size max_tokens tools documents variables variables_len now
        add_generation_prompt reserved);
    record!(text, "smolrun_session_options", CSessionOptions: size threads kv overflow fast reserved cancel);
    record!(text, "smolrun_logit_bias", CLogitBias: id bias);
    record!(text, "smolrun_generate_options", CGenerateOptions: size max_tokens stop stop_len cancel seed temperature
        top_p top_k min_p typical_p repetition_penalty frequency_penalty presence_penalty ignore_eos penalty_window
        logit_bias logit_bias_len sampler_order sampler_order_len logprobs);
    record!(text, "smolrun_alternative", CAlternative: id logprob);
    record!(text, "smolrun_token", CToken: id finish_reason text text_len top top_len logprob reserved);
    record!(text, "smolrun_scheduler_options", CSchedulerOptions: size threads max_sequences max_rows kv_bytes
        prefix_bytes kv overflow pace reserved);
    record!(text, "smolrun_event", CEvent: request token finish_reason status message);
    assert_eq!(
        text,
        include_str!("../abi/1/structs.txt"),
        "a change needs a new SMOLRUN_ABI_VERSION, and a record"
    );
}
