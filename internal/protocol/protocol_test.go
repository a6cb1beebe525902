// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
)

// Hub and agent compute the digest, perhaps in different versions. So the digest of given settings must never change.
func TestSettingsDigestIsStable(t *testing.T) {
	base := protocol.Settings{Servers: []string{"https://hub.example.com", "https://hub.example.net"}, CABundle: "PEM"}
	if got, want := base.Digest(), "8f9324226a4b00e7e18e4b4535f577bc071fab8741be6ce84051ca2cb31887bc"; got != want {
		t.Errorf("got digest %s, want %s", got, want)
	}
	seen := map[string]string{base.Digest(): "the base"}
	for name, s := range map[string]protocol.Settings{
		"another order of servers": {Servers: []string{base.Servers[1], base.Servers[0]}, CABundle: "PEM"},
		"fewer servers":            {Servers: base.Servers[:1], CABundle: "PEM"},
		"another bundle":           {Servers: base.Servers, CABundle: "PEM2"},
		"no bundle":                {Servers: base.Servers},
	} {
		if other, ok := seen[s.Digest()]; ok {
			t.Errorf("%s and %s have the same digest, want different ones", name, other)
		}
		seen[s.Digest()] = name
	}
}

func TestProofPayloadsDiffer(t *testing.T) {
	a, b := protocol.ProofPayload("token", "uid"), protocol.ProofPayload("tokenu", "id")
	if bytes.Equal(a, b) {
		t.Error("two proofs for different tokens and members are equal")
	}
}

func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"protocol":1,"minProtocol":1,"agentVersion":"v0.1.0",` +
		`"nodes":{"total":3,"ready":2,"capacity":{"cpu":"12"}},"health":{"healthy":true}}`))
	f.Add([]byte(`{"nodes":null,"health":{"since":"0001-01-01T00:00:00Z"}}`))
	f.Add([]byte(`[[[[[[`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var report, again protocol.Report
		if json.Unmarshal(line, &report) != nil {
			return
		}
		raw, err := json.Marshal(report)
		if err != nil {
			return // JSON cannot have this year
		}
		if err := json.Unmarshal(raw, &again); err != nil {
			t.Fatalf("the report does not decode again: %v", err)
		}
		if same, err := json.Marshal(again); err != nil || !bytes.Equal(raw, same) {
			t.Errorf("%s became %s, %v, want it unchanged", raw, same, err)
		}
	})
}

func TestSettingsOfANewerHubAreConfirmed(t *testing.T) {
	known := protocol.Settings{Servers: []string{"https://hub.example.com?a=1&b"}, CABundle: "PEM"}
	plain, err := json.Marshal(known)
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Replace(plain, []byte("}"), []byte(`,"proxy":{"url":"x"}}`), 1)
	for name, sent := range map[string][]byte{"of this version": plain, "with an unknown field": newer} {
		t.Run(name, func(t *testing.T) {
			stored := sent
			for range 2 { // received, stored, and read again
				var s protocol.Settings
				if err := json.Unmarshal(stored, &s); err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("%x", sha256.Sum256(sent)); s.Digest() != want {
					t.Errorf("the digest is %s, want the hub's digest %s", s.Digest(), want)
				}
				if s.CABundle != known.CABundle || !slices.Equal(s.Servers, known.Servers) {
					t.Errorf("got settings %+v, want the fields of %+v", s, known)
				}
				if stored, err = json.Marshal(s); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	var s protocol.Settings
	if err := json.Unmarshal(plain, &s); err != nil || !reflect.DeepEqual(s, known) {
		t.Errorf("got settings %+v, %v, want only %+v", s, err, known)
	}
}
