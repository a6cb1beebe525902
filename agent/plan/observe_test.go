// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

func TestClaimThatDroverCannotHaveWrittenIsIgnored(t *testing.T) {
	const since = `"since":"2026-11-21T00:00:00Z"`
	for text, want := range map[string]bool{
		`{"uid":"u",` + since + `}`: true,
		`{"uid":"u",` + since + `,"failure":{"at":"2026-11-21T00:00:00Z","reason":"x"}}`: true,
		`{` + since + `}`:                        false,
		`{"uid":"u"}`:                            false,
		`{"uid":"u",` + since + `,"failure":{}}`: false,
		`{"uid":"u","since":"yesterday"}`:        false,
		`["u"]`:                                  false,
		`{"uid":"u","since":"9999-12-31T23:59:59-23:59"}`:                        false,
		`{"uid":"u",` + since + `,"done":"0000-01-01T00:00:00+23:59"}`:           false,
		`{"uid":"u",` + since + `,"failure":{"at":"9999-12-31T23:59:59-23:59"}}`: false,
	} {
		if _, ours := readClaim(text); ours != want {
			t.Errorf("%s: got %t, want %t", text, ours, want)
		}
	}
	long := strings.Repeat("é", 4000)
	c, ours := readClaim(`{"uid":"u",` + since + `,"failure":{"at":"2026-11-21T00:00:00Z","reason":"` + long +
		`","message":"` + long + `"}}`)
	if !ours || len(c.Failure.Reason) > maxReason || len(c.Failure.Message) > maxCause {
		t.Errorf("a failure of %d and %d bytes", len(c.Failure.Reason), len(c.Failure.Message))
	}
}

// FuzzClaim checks that a kubelet, which may write the claims of its own node, cannot write a claim that makes the
// status of the plan invalid.
func FuzzClaim(f *testing.F) {
	for _, text := range []string{
		`{"uid":"u","hash":"h","since":"2026-11-21T00:00:00Z","attempt":1,"cordoned":true}`,
		`{"uid":"u","since":"9999-12-31T23:59:59-23:59"}`, `{"uid":"u","since":"0000-01-01T00:00:00+23:59","attempt":-1}`,
		`{"uid":"u","since":"2026-11-21T00:00:00Z","failure":{"at":"9999-12-31T23:59:59-23:59","reason":"\ud800",` +
			`"message":"\u001b[2J"}}`,
		`{"uid":"u","since":"2026-11-21T00:00:00Z","attempt":2147483647,"done":"9999-12-31T23:59:59Z",` +
			`"failure":{"at":"2026-11-21T00:00:00Z","final":true}}`, `[[`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		node, _ := readNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
			Labels: map[string]string{corev1.LabelHostname: "n"}, Annotations: map[string]string{v1.PlanLabel("p"): text}}})
		c := node.Claims["p"]
		m, p := rollout.Member{Nodes: []rollout.Node{node.Node}},
			rollout.Plan{Name: "p", UID: c.UID, Hash: "h", Version: "v1"}
		now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
		rollout.Next(m, p, now)
		progress, err := rollout.ProgressOf(m, p, now)
		if err != nil {
			t.Fatal(err)
		}
		status := v1.PlanStatus{Nodes: &progress.Nodes, Applying: progress.Applying, Failures: progress.Failures}
		written, err := json.Marshal(status)
		if err != nil || json.Unmarshal(written, &v1.PlanStatus{}) != nil {
			t.Errorf("no status can have %s: %v", written, err)
		}
		for _, failure := range status.Failures {
			if len(failure.Message) > 512 {
				t.Errorf("a message of %d bytes", len(failure.Message))
			}
		}
	})
}

func TestMessageForAnInvalidWindowIsBounded(t *testing.T) {
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "s",
		Annotations: map[string]string{v1.AnnotationPlansWindow: strings.Repeat("é ", 100_000)}}}
	if veto, _ := readVeto(space); veto.hold == "" || len(veto.hold) > 512 {
		t.Errorf("a hold of %d bytes", len(veto.hold))
	}
}
