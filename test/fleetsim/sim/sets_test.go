// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
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
			t.Fatal(answer.Code, answer.Body)
		}
		return state
	}
	sent := map[string]string{}
	put := ask(http.MethodPut, protocol.SetPath("crtb/x"), `{"id":"crtb/x","digest":"1"}`)
	if put.Phase != protocol.SetApplied || put.Digest != "1" {
		t.Errorf("%+v", put)
	}
	if events, _ := a.sets.news(sent); len(events) != 1 || events[0].State == nil || events[0].State.ID != "crtb/x" {
		t.Errorf("a set that came is not sent: %+v", events)
	}
	if came := s.Arrivals(); len(came) != 1 || came[0].ID != "crtb/x" || came[0].At.IsZero() || len(s.Arrivals()) != 0 {
		t.Errorf("a set that came is not counted once: %+v", came)
	}
	if state := ask(http.MethodDelete, protocol.SetPath("crtb/x"), ""); state.Phase != protocol.SetDeleted {
		t.Errorf("%+v", state)
	}
	if events, _ := a.sets.news(sent); len(events) != 1 || events[0].Removed != "crtb/x" {
		t.Errorf("a set that was taken away is not sent: %+v", events)
	}
	if events, _ := a.sets.news(sent); len(events) != 0 {
		t.Errorf("sent twice: %+v", events)
	}
}
