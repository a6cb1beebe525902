// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestSets(t *testing.T) {
	t.Parallel()
	s := &Sim{}
	a := newAgent(s, Member{})
	ask := func(method, path, body string) protocol.SetState {
		t.Helper()
		answer := httptest.NewRecorder()
		a.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
		var state protocol.SetState
		if err := json.Unmarshal(answer.Body.Bytes(), &state); err != nil || answer.Code != http.StatusOK {
			t.Fatalf("got %v, %v, want 200 with a state", answer.Code, answer.Body)
		}
		return state
	}
	topic := a.stream.Topic(protocol.SubjectSets)
	put := ask(http.MethodPut, protocol.SetPath("crtb/x"), `{"id":"crtb/x","digest":"1"}`)
	if put.Phase != protocol.SetApplied || put.Digest != "1" {
		t.Errorf("got %+v, want Applied with the digest 1", put)
	}
	if line := topic.Get("crtb/x"); line == nil || line.Set.State.Digest != "1" {
		t.Errorf("a set that came is not reported: %+v", line)
	}
	if came := s.Arrivals(); len(came) != 1 || came[0].ID != "crtb/x" || came[0].At.IsZero() || len(s.Arrivals()) != 0 {
		t.Errorf("a set that came is not counted once: %+v", came)
	}
	for _, checkpoint := range []string{"lease/1/a/2", "lease/1/a/1"} { // the second was delayed
		ask(http.MethodPut, protocol.SetPathAt("crtb/x", checkpoint), `{"id":"crtb/x","digest":"1"}`)
	}
	if line := topic.Get(checkpointKey); line == nil || line.Set.Checkpoint != "lease/1/a/2" {
		t.Errorf("the checkpoint that it reports is %+v, want the latest", line)
	}
	s.agents = []*agent{a}
	if has := s.Sets()[a.name()]; !slices.Equal(has, []string{"crtb/x"}) {
		t.Errorf("it has the sets %v, want the one that came", has)
	}
	if state := ask(http.MethodDelete, protocol.SetPath("crtb/x"), ""); state.Phase != protocol.SetDeleted {
		t.Errorf("got %+v, want Deleted", state)
	}
	if keys := s.Sets()[a.name()]; len(keys) != 0 {
		t.Errorf("a set that was taken away is still reported: %v", keys)
	}
}
