/* Prints how the header's structs are laid out, for abi/1/structs.txt. */
#include <stdio.h>

#include "smolrun.h"

#define STRUCT(type) printf("struct %s %zu\n", #type, sizeof(type))
#define FIELD(type, field) printf("    %s %zu %zu\n", #field, offsetof(type, field), sizeof(((type *)0)->field))

int main(void) {
    printf("abi %d\n", SMOLRUN_ABI_VERSION);
    STRUCT(smolrun_model_info);
    FIELD(smolrun_model_info, size);
    FIELD(smolrun_model_info, vocab_size);
    FIELD(smolrun_model_info, hidden_size);
    FIELD(smolrun_model_info, num_hidden_layers);
    FIELD(smolrun_model_info, max_position_embeddings);
    FIELD(smolrun_model_info, parameters);
    FIELD(smolrun_model_info, bytes);
    FIELD(smolrun_model_info, bos_token_id);
    FIELD(smolrun_model_info, has_chat_template);
    FIELD(smolrun_model_info, is_quantized);
    STRUCT(smolrun_message);
    FIELD(smolrun_message, role);
    FIELD(smolrun_message, content);
    STRUCT(smolrun_template_variable);
    FIELD(smolrun_template_variable, name);
    FIELD(smolrun_template_variable, text);
    FIELD(smolrun_template_variable, flag);
    STRUCT(smolrun_chat_options);
    FIELD(smolrun_chat_options, size);
    FIELD(smolrun_chat_options, max_tokens);
    FIELD(smolrun_chat_options, tools);
    FIELD(smolrun_chat_options, documents);
    FIELD(smolrun_chat_options, variables);
    FIELD(smolrun_chat_options, variables_len);
    FIELD(smolrun_chat_options, now);
    FIELD(smolrun_chat_options, add_generation_prompt);
    FIELD(smolrun_chat_options, reserved);
    STRUCT(smolrun_session_options);
    FIELD(smolrun_session_options, size);
    FIELD(smolrun_session_options, threads);
    FIELD(smolrun_session_options, kv);
    FIELD(smolrun_session_options, overflow);
    FIELD(smolrun_session_options, fast);
    FIELD(smolrun_session_options, reserved);
    FIELD(smolrun_session_options, cancel);
    STRUCT(smolrun_logit_bias);
    FIELD(smolrun_logit_bias, id);
    FIELD(smolrun_logit_bias, bias);
    STRUCT(smolrun_generate_options);
    FIELD(smolrun_generate_options, size);
    FIELD(smolrun_generate_options, max_tokens);
    FIELD(smolrun_generate_options, stop);
    FIELD(smolrun_generate_options, stop_len);
    FIELD(smolrun_generate_options, cancel);
    FIELD(smolrun_generate_options, seed);
    FIELD(smolrun_generate_options, temperature);
    FIELD(smolrun_generate_options, top_p);
    FIELD(smolrun_generate_options, top_k);
    FIELD(smolrun_generate_options, min_p);
    FIELD(smolrun_generate_options, typical_p);
    FIELD(smolrun_generate_options, repetition_penalty);
    FIELD(smolrun_generate_options, frequency_penalty);
    FIELD(smolrun_generate_options, presence_penalty);
    FIELD(smolrun_generate_options, ignore_eos);
    FIELD(smolrun_generate_options, penalty_window);
    FIELD(smolrun_generate_options, logit_bias);
    FIELD(smolrun_generate_options, logit_bias_len);
    FIELD(smolrun_generate_options, sampler_order);
    FIELD(smolrun_generate_options, sampler_order_len);
    FIELD(smolrun_generate_options, logprobs);
    STRUCT(smolrun_alternative);
    FIELD(smolrun_alternative, id);
    FIELD(smolrun_alternative, logprob);
    STRUCT(smolrun_token);
    FIELD(smolrun_token, id);
    FIELD(smolrun_token, finish_reason);
    FIELD(smolrun_token, text);
    FIELD(smolrun_token, text_len);
    FIELD(smolrun_token, top);
    FIELD(smolrun_token, top_len);
    FIELD(smolrun_token, logprob);
    FIELD(smolrun_token, reserved);
    STRUCT(smolrun_scheduler_options);
    FIELD(smolrun_scheduler_options, size);
    FIELD(smolrun_scheduler_options, threads);
    FIELD(smolrun_scheduler_options, max_sequences);
    FIELD(smolrun_scheduler_options, max_rows);
    FIELD(smolrun_scheduler_options, kv_bytes);
    FIELD(smolrun_scheduler_options, prefix_bytes);
    FIELD(smolrun_scheduler_options, kv);
    FIELD(smolrun_scheduler_options, overflow);
    FIELD(smolrun_scheduler_options, pace);
    FIELD(smolrun_scheduler_options, reserved);
    STRUCT(smolrun_event);
    FIELD(smolrun_event, request);
    FIELD(smolrun_event, token);
    FIELD(smolrun_event, finish_reason);
    FIELD(smolrun_event, status);
    FIELD(smolrun_event, message);
    return 0;
}
