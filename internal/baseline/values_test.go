// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/baseline"
)

func TestSubstituteReplacesOnlyReferencesToTheCluster(t *testing.T) {
	values := baseline.Values("prod-1", map[string]string{
		"env": "prod", "a.io/zone": "b", "evil": "$(CLUSTER_NAME)", "empty": "",
	})
	for text, want := range map[string]string{
		"":                               "",
		"plain":                          "plain",
		"$(CLUSTER_NAME)":                "prod-1",
		"x-$(CLUSTER_NAME)-$(LABEL:env)": "x-prod-1-prod",
		"$(LABEL:a.io/zone)":             "b",
		"[$(LABEL:empty)]":               "[]",
		"--node=$(NODE_NAME)":            "--node=$(NODE_NAME)",
		"$(date +%s) $(CLUSTER_NAME)":    "$(date +%s) prod-1",
		"$$(CLUSTER_NAME)":               "$(CLUSTER_NAME)",
		"$$(NODE_NAME)":                  "$$(NODE_NAME)",
		"$(CLUSTER_NAME":                 "$(CLUSTER_NAME",
		"$($(CLUSTER_NAME))":             "$(prod-1)",
		"$(LABEL:evil)":                  "$(CLUSTER_NAME)",
		"$CLUSTER_NAME ${LABEL:env}":     "$CLUSTER_NAME ${LABEL:env}",
	} {
		object := map[string]any{"a": []any{map[string]any{"b": text}}, "n": int64(7)}
		if err := baseline.Substitute(object, values); err != nil {
			t.Errorf("%q: got the error %v, want %q", text, err, want)
			continue
		}
		if got := (map[string]any{"a": []any{map[string]any{"b": want}}, "n": int64(7)}); !reflect.DeepEqual(object, got) {
			t.Errorf("%q: got %v, want %v", text, object, got)
		}
	}
}

func TestSubstituteRefusesALabelThatTheClusterLacks(t *testing.T) {
	object := map[string]any{"a": "x $(LABEL:region) secret"}
	err := baseline.Substitute(object, baseline.Values("prod-1", nil))
	if err == nil || !strings.Contains(err.Error(), "$(LABEL:region)") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error that names $(LABEL:region) and nothing else of the text", err)
	}
}

func TestSubstituteLeavesKeysUnchanged(t *testing.T) {
	object := map[string]any{"$(CLUSTER_NAME)": "a"}
	if err := baseline.Substitute(object, baseline.Values("prod-1", nil)); err != nil {
		t.Fatal(err)
	}
	if _, kept := object["$(CLUSTER_NAME)"]; !kept {
		t.Errorf("got %v, want the key unchanged", object)
	}
}

func TestValuesLeaveOutTheProgressOfPlans(t *testing.T) {
	got := baseline.Values("prod-1", map[string]string{"env": "prod", "plan.cluster.drover.dev/k3s": "1234"})
	if want := map[string]string{"CLUSTER_NAME": "prod-1", "LABEL:env": "prod"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRefersFindsReferencesInTheJSON(t *testing.T) {
	for text, want := range map[string]bool{
		"$(CLUSTER_NAME)": true, "a $(LABEL:env) b": true, "$(NODE_NAME)": false, "CLUSTER_NAME": false,
	} {
		raw, err := json.Marshal(map[string]string{"a": text})
		if err != nil {
			t.Fatal(err)
		}
		if got := baseline.Refers(raw); got != want {
			t.Errorf("got %t for %q, want %t", got, text, want)
		}
	}
}
