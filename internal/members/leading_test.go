// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

func follower(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusMisdirectedRequest, Body: http.NoBody}, nil
}

func gone(*http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("send request: %w", tunnel.ErrNotProcessed)
}

func TestRequestsFindTheLeader(t *testing.T) {
	name := types.NamespacedName{Namespace: "team-a", Name: "prod"}
	leads := &protocol.Report{Leader: true}
	for title, tt := range map[string]struct {
		agents  []carrier
		reports []*protocol.Report
		want    string
		err     error
	}{
		"the agent that says that it leads gets the request": {
			[]carrier{answers("a"), answers("b")}, []*protocol.Report{leads, {}}, "a set", nil,
		},
		"after an agent that does not lead, the other is tried": {
			[]carrier{answers("a"), follower}, []*protocol.Report{nil, nil}, "a set", nil,
		},
		"the same if it led until a moment ago": {
			[]carrier{answers("a"), follower}, []*protocol.Report{nil, leads}, "a set", nil,
		},
		"a tunnel that has ended is skipped": {
			[]carrier{answers("a"), gone}, []*protocol.Report{nil, leads}, "a set", nil,
		},
		"without a leader the error says so": {
			[]carrier{follower, follower}, []*protocol.Report{nil, nil}, "", ErrNoLeader,
		},
	} {
		t.Run(title, func(t *testing.T) {
			r := New(logr.Discard(), time.Now)
			defer r.Close()
			mirror := r.Mirror("other")
			at := map[string]carrier{}
			mirror.Begin(func(p Peer) http.RoundTripper { return at[p.ID] })
			record := Record{Namespace: name.Namespace, Name: name.Name}
			for i, agent := range tt.agents {
				p := Peer{Cluster: protocol.ClusterRef{Namespace: name.Namespace, Name: name.Name}, ID: fmt.Sprint(i),
					Instance: fmt.Sprint("agent-", i), Epoch: int64(i + 1)}
				at[p.ID] = agent
				record.Tunnels = append(record.Tunnels, p)
				if report := tt.reports[i]; report != nil && report.Leader {
					record.Report, record.Reported = report, p.Epoch
				}
			}
			mirror.Update(record)
			transport, err := r.Leading(name)
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://agent/v1/sets/x",
				strings.NewReader(" set"))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if tt.err != nil {
				if !errors.Is(err, tt.err) {
					t.Fatalf("got the error %v, want %v", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if raw, err := io.ReadAll(resp.Body); err != nil || string(raw) != tt.want {
				t.Errorf("the response is %q, %v, want %q from the leader", raw, err, tt.want)
			}
		})
	}
	t.Run("a member that is not connected is an error", func(t *testing.T) {
		r := New(logr.Discard(), time.Now)
		defer r.Close()
		if _, err := r.Leading(name); !errors.Is(err, ErrNotConnected) {
			t.Errorf("got %v, want %v", err, ErrNotConnected)
		}
	})
}
