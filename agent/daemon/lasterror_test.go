// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/drover-dev/drover/api/v1"
)

// annotated is a Deployment whose annotation changes. err is the API server's response.
type annotated struct {
	start  time.Time
	writes []string // "<seconds since the start> <text without its time>"
	err    error
	clears bool // whether the annotation can be removed in spite of err
}

func (a *annotated) write(_ context.Context, text string) error {
	if at, rest, found := strings.Cut(text, "Z: "); found {
		if _, err := time.Parse(time.RFC3339, at+"Z"); err != nil {
			return err
		}
		text = rest
	}
	a.writes = append(a.writes, strings.TrimSpace(time.Since(a.start).Round(time.Second).String()+" "+text))
	if text == "" && a.clears {
		return nil
	}
	return a.err
}

// said is an error of the link, or its end, after some time.
type said struct {
	after time.Duration
	why   string
}

// again returns a script repeated n times.
func again(n int, script ...said) []said {
	var all []said
	for range n {
		all = append(all, script...)
	}
	return all
}

func TestTheLastErrorIsWrittenWhenItChanges(t *testing.T) {
	t.Parallel()
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, "drover-agent", nil)
	for name, tt := range map[string]struct {
		err    error
		clears bool
		script []said
		want   []string
	}{
		"an agent that connects removes what another process wrote": {script: []said{{0, ""}}, want: []string{"0s"}},
		"an agent that is back soon writes nothing": {
			script: []said{{0, ""}, {time.Hour, "down"}, {9 * time.Second, ""}}, want: []string{"0s"}},
		"an error that lasts is written once, and removed at once": {
			script: append(again(100, said{time.Second, "down"}), said{time.Second, ""}),
			want:   []string{"11s down", "1m41s"}},
		"errors that alternate are written once a minute": {
			script: again(75, said{900 * time.Millisecond, "down"}, said{900 * time.Millisecond, "up, but not for us"}),
			want:   []string{"11s up, but not for us", "1m11s down", "2m11s up, but not for us"}},
		"the same error from another port is the same": {script: []said{
			{0, "read tcp 10.0.0.1:1234->10.0.0.2:443: reset"},
			{5 * time.Minute, "read tcp 10.0.0.1:1235->10.0.0.2:443: reset"},
		}, want: []string{"10s read tcp 10.0.0.2:443: reset"}},
		"a write that fails is repeated": {err: errors.New("down, too"),
			script: []said{{0, "down"}, {time.Minute, "down"}}, want: []string{"10s down", "1m10s down"}},
		"an error whose write failed is removed, because it may have been written": {
			err: errors.New("timeout"), clears: true,
			script: []said{{0, ""}, {time.Hour, "down"}, {15 * time.Second, ""}},
			want:   []string{"0s", "1h0m10s down", "1h0m15s"}},
		"a write that is forbidden is not": {err: refused,
			script: []said{{0, "down"}, {time.Hour, "down"}}, want: []string{"10s down"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := &annotated{start: time.Now(), err: tt.err, clears: tt.clears}
				ctx, cancel := context.WithCancel(t.Context())
				e := newLastError(a.write, logr.Discard())
				ended := make(chan struct{})
				go func() { defer close(ended); e.lead(ctx) }()
				for _, s := range tt.script {
					time.Sleep(s.after)
					e.tell(s.why)
					synctest.Wait()
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				cancel()
				<-ended
				if !slices.Equal(a.writes, tt.want) {
					t.Errorf("it wrote %q, want %q", a.writes, tt.want)
				}
			})
		})
	}
}

func TestAnErrorThatOthersSeeHasNoCredentials(t *testing.T) {
	t.Parallel()
	const name = "lookup drover.production-eu.example.com: no such host"
	for _, tt := range []struct{ text, want string }{
		{"dial http://user:s3cr/et@x@proxy:3128: refused", "dial http://***@proxy:3128: refused"},
		{"hub answered 401: Bearer abc.def", "hub answered 401: ***"},
		{"hub answered 401: eyJhbGciOi.eyJzdWIi.c2ln was used", "hub answered 401: *** was used"},
		{name, name},
		{"one line\nand \x1b[2J another", "one line and  [2J another"},
		{"x509: certificate has expired or is not yet valid: current time 2026-11-27T10:00:00Z is after 2025-01-01T00:00:00Z",
			"x509: certificate has expired or is not yet valid: the current time is after 2025-01-01T00:00:00Z"},
		{"read udp 10.0.0.2:1->10.96.0.10:53: i/o timeout", "read udp 10.96.0.10:53: i/o timeout"},
	} {
		if got := Presentable(tt.text); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.text, got, tt.want)
		}
	}
	if got := Presentable(strings.Repeat("x", 2*maxLastError)); len(got) != maxLastError {
		t.Errorf("%d bytes, want %d", len(got), maxLastError)
	}
}

// TestANewLeaderWritesItsOwnState has two replicas that are elected in turn. Another replica may have changed the
// annotation since the last term.
func TestANewLeaderWritesItsOwnState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &annotated{start: time.Now()}
		connected, failing := newLastError(a.write, logr.Discard()), newLastError(a.write, logr.Discard())
		connected.tell("")
		failing.tell("down")
		for _, leader := range []*lastError{connected, failing, connected} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			leader.lead(ctx)
			cancel()
		}
		if want := []string{"0s", "30s down", "40s"}; !slices.Equal(a.writes, want) {
			t.Errorf("the leaders wrote %q, want %q", a.writes, want)
		}
	})
}

func TestALeaderThatFindsNoLastErrorWritesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		text        string
		want        []string
	}{
		"no annotation to remove": {text: "", want: nil},
		"an annotation is removed": {
			annotations: map[string]string{v1.AnnotationAgentLastError: "x"}, text: "", want: []string{""},
		},
		"an error is written at once": {text: "no route to host", want: []string{"no route to host"}},
	} {
		t.Run(name, func(t *testing.T) {
			live := &appsv1.Deployment{}
			live.Annotations = test.annotations
			var got []string
			write := annotate(
				func(context.Context) (*appsv1.Deployment, error) { return live, nil },
				func(_ context.Context, key, value string) error {
					if key != v1.AnnotationAgentLastError {
						t.Errorf("got a write of annotation %s, want %s", key, v1.AnnotationAgentLastError)
					}
					got = append(got, value)
					return nil
				})
			if err := write(t.Context(), test.text); err != nil {
				t.Fatalf("got error %v, want none", err)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got writes %q, want %q", got, test.want)
			}
		})
	}
}
