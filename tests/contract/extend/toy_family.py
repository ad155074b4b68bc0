"""A family of a user's own, in one file: its record and a tiny model. It is LLaVA, which mmgrpo has no record of."""

from mmgrpo import FamilySpec
from mmgrpo.policy.families.common import encode_on_one_axis, features_of
from mmgrpo.policy.families.tiny.parts import (
    SIZES,
    build_tokenizer,
    chat_template,
    decoder_sizes,
    encoder_sizes,
    initialise,
    merge_sizes,
)


def encode_media(model, prompts, inputs):
    features = {}
    if "pixel_values" in inputs:
        images = model.model.get_image_features(inputs["pixel_values"], return_dict=True)
        features[model.config.image_token_id] = features_of(images)
    return encode_on_one_axis(model, prompts, features)


def features_per_image(config):
    return (config.vision_config.image_size // config.vision_config.patch_size) ** 2


def count_features(prompt, config):
    return {"image": len(prompt.model_inputs.get("pixel_values", ())) * features_per_image(config)}


def tiny(sizes, seed):
    from transformers import CLIPImageProcessor, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

    size = merge_sizes(SIZES | {"image_size": 56, "patch_size": 14}, sizes)
    tokenizer = build_tokenizer("<image>", named={"image_token": "<image>"})
    edge = {"height": size["image_size"], "width": size["image_size"]}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": size["image_size"]}, crop_size=edge),
        tokenizer=tokenizer,
        patch_size=size["patch_size"],
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template(image="<image>\n"),
    )
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **encoder_sizes(size)},
        text_config={"model_type": "llama", **decoder_sizes(size, tokenizer), "tie_word_embeddings": True},
        image_token_index=tokenizer.image_token_id,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    return initialise(LlavaForConditionalGeneration, config, processor, seed), processor


RECORD = FamilySpec(
    name="llava",
    kinds=frozenset({"image"}),
    parts={
        "vision": ("model.vision_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    },
    keys={"pixel_values": "concat"},
    decoder="model.language_model",
    axes=1,
    layout="packed",
    encode_media=encode_media,
    media_tokens=lambda config: {"image": (config.image_token_id,)},
    count_features=count_features,
    tiny=tiny,
)
