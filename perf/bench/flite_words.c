/* Speaks a text with a voice of flite, and prints when each of its words begins and ends:
     words VOICE TEXT FILE.wav
   A line for each word: the word, its start and its end in seconds. */
#include <flite/flite.h>
#include <stdio.h>
#include <string.h>

cst_voice *register_cmu_us_slt(const char *);
cst_voice *register_cmu_us_rms(const char *);
cst_voice *register_cmu_us_awb(const char *);
cst_voice *register_cmu_us_kal16(const char *);

static cst_voice *voice_of(const char *name) {
    if (!strcmp(name, "slt")) return register_cmu_us_slt(NULL);
    if (!strcmp(name, "rms")) return register_cmu_us_rms(NULL);
    if (!strcmp(name, "awb")) return register_cmu_us_awb(NULL);
    return register_cmu_us_kal16(NULL);
}

static float end_of(const cst_item *segment) {
    return segment ? item_feat_float(segment, "end") : 0;
}

int main(int count, char **given) {
    if (count != 4) return 2;
    flite_init();
    cst_utterance *said = flite_synth_text(given[2], voice_of(given[1]));
    if (!said) return 1;
    for (cst_item *token = relation_head(utt_relation(said, "Token")); token; token = item_next(token))
        for (cst_item *word = item_daughter(token); word; word = item_next(word)) {
            cst_item *first = NULL, *last = NULL;
            cst_item *syllable = item_daughter(item_as(word, "SylStructure"));
            for (; syllable; syllable = item_next(syllable))
                for (cst_item *part = item_daughter(syllable); part; part = item_next(part)) {
                    last = item_as(part, "Segment");
                    if (!first) first = last;
                }
            if (first) printf("%s %.4f %.4f\n", item_name(word), end_of(item_prev(first)), end_of(last));
        }
    return cst_wave_save_riff(utt_wave(said), given[3]) < 0;
}
