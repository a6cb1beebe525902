// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/drover-dev/drover/agent/leader"
)

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// server stores the Lease as an API server does.
type server struct {
	mu     sync.Mutex // guards the fields below
	lease  *coordinationv1.Lease
	asked  int
	writes int
	err    error // error of every call, or nil
}

// requests returns the number of requests so far.
func (s *server) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// client is the server's client of one replica.
type client struct {
	*server
	cut *bool // whether the replica is cut off; guarded by server.mu
}

func (c client) problem() error {
	c.asked++
	if *c.cut {
		return errors.New("network is unreachable")
	}
	return c.err
}

func (c client) Get(context.Context) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.problem(); err != nil {
		return nil, err
	}
	if c.lease == nil {
		return nil, apierrors.NewNotFound(resource, "x")
	}
	return c.lease.DeepCopy(), nil
}

func (c client) Create(_ context.Context, spec coordinationv1.LeaseSpec) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.problem(); err != nil {
		return nil, err
	}
	if c.lease != nil {
		return nil, apierrors.NewAlreadyExists(resource, "x")
	}
	return c.put(spec), nil
}

func (c client) Update(_ context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.problem(); err != nil {
		return nil, err
	}
	if c.lease == nil {
		return nil, apierrors.NewNotFound(resource, "x")
	}
	if c.lease.ResourceVersion != lease.ResourceVersion {
		return nil, apierrors.NewConflict(resource, "x", errors.New("changed"))
	}
	return c.put(lease.Spec), nil
}

func (c client) put(spec coordinationv1.LeaseSpec) *coordinationv1.Lease {
	c.writes++
	c.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(c.writes)},
		Spec: *spec.DeepCopy()}
	return c.lease.DeepCopy()
}

// replica takes part until it is stopped.
type replica struct {
	name  string
	leads chan bool // true when it becomes the leader, false when it stops leading
	stop  context.CancelFunc
	cut   *bool
	s     *server
}

// isolate cuts the replica off, which looks to the other replicas as if it had been killed, or reconnects it.
func (r *replica) isolate(cut bool) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	*r.cut = cut
}

func (s *server) join(t *testing.T, name string) *replica {
	ctx, stop := context.WithCancel(t.Context())
	r := &replica{name: name, leads: make(chan bool, 10), stop: stop, cut: new(bool), s: s}
	e := leader.New(leader.Options{
		Leases: client{server: s, cut: r.cut}, Name: name, Follow: func() {}, Log: logr.Discard(),
		Lead: func(ctx context.Context) {
			r.leads <- true
			<-ctx.Done()
			r.leads <- false
		},
	})
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return r
}

// is returns the changes since the last call: 't' for a start of leading, 'f' for an end.
func (r *replica) is() string {
	synctest.Wait()
	said := ""
	for {
		select {
		case leads := <-r.leads:
			said += strconv.FormatBool(leads)[:1]
		default:
			return said
		}
	}
}

func expect(t *testing.T, r *replica, want string) {
	t.Helper()
	if got := r.is(); got != want {
		t.Errorf("%s: got %q, want %q", r.name, got, want)
	}
}

// pass advances the bubble's time.
func pass(d time.Duration) { <-time.After(d) }

func TestElection(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, s *server){
		"one of two replicas leads at once": func(t *testing.T, s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			b := s.join(t, "b")
			pass(time.Hour)
			expect(t, a, "")
			expect(t, b, "")
		},
		"an hour of leading takes 720 writes, and followers write nothing": func(t *testing.T, s *server) {
			expect(t, s.join(t, "a"), "t")
			expect(t, s.join(t, "b"), "")
			pass(time.Hour)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.writes > 721 {
				t.Errorf("got %d writes, want 720", s.writes)
			}
		},
		"a leader that stops in good order is replaced within two seconds": func(t *testing.T, s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			b := s.join(t, "b")
			pass(time.Minute)
			a.stop()
			expect(t, a, "f")
			pass(2 * time.Second)
			expect(t, b, "t")
		},
		"a leader that is killed is replaced within 19 seconds, but not before its Lease has ended": func(t *testing.T,
			s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			b := s.join(t, "b")
			pass(time.Minute)
			a.isolate(true)
			pass(9 * time.Second)
			expect(t, b, "")
			pass(10 * time.Second)
			expect(t, b, "t")
		},
		"a container that is killed leads again at once when its pod has restarted it": func(t *testing.T, s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			b := s.join(t, "b")
			a.isolate(true)
			expect(t, s.join(t, "a"), "t")
			pass(time.Minute)
			expect(t, b, "")
		},
		"a leader that is cut off stops before another begins, and follows when it is back": func(t *testing.T, s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			b := s.join(t, "b")
			pass(time.Minute)
			a.isolate(true)
			pass(10 * time.Second)
			expect(t, a, "f")
			expect(t, b, "")
			pass(9 * time.Second)
			expect(t, b, "t")
			a.isolate(false)
			pass(time.Hour)
			expect(t, a, "")
			expect(t, b, "")
		},
		"an API server that is unavailable for less than the deadline changes nothing": func(t *testing.T, s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			b := s.join(t, "b")
			pass(time.Minute)
			s.fail(errors.New("down"))
			pass(4 * time.Second)
			s.fail(nil)
			pass(time.Minute)
			expect(t, a, "")
			expect(t, b, "")
		},
		"a deleted Lease is created again": func(t *testing.T, s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			s.mu.Lock()
			s.lease = nil
			s.mu.Unlock()
			pass(10 * time.Second)
			expect(t, a, "ft")
		},
		"no replica leads while Leases are forbidden": func(t *testing.T, s *server) {
			s.fail(apierrors.NewForbidden(resource, "x", errors.New("no")))
			a := s.join(t, "a")
			pass(time.Hour)
			expect(t, a, "")
			s.fail(nil)
			pass(2 * time.Second)
			expect(t, a, "t")
		},
		"a replica that knows the Lease waits while Leases are forbidden for a moment": func(t *testing.T, s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			s.fail(apierrors.NewForbidden(resource, "x", errors.New("starting")))
			pass(time.Minute)
			expect(t, a, "f")
			s.fail(nil)
			pass(2 * time.Second)
			expect(t, a, "t")
		},
		"a lost response is not a loss of the Lease": func(t *testing.T, s *server) {
			a := s.join(t, "a")
			expect(t, a, "t")
			pass(time.Minute)
			s.mu.Lock()
			s.lease.ResourceVersion = "renewed, and the answer lost"
			s.mu.Unlock()
			pass(time.Minute)
			expect(t, a, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, &server{}) })
		})
	}
}

func TestRestoredClusterIsNoticed(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(*server){
		"by the leader at its next write, and by a replica that follows": func(*server) {},
		"even if versions moved forward":                                 func(s *server) { s.writes = 1_000_000 },
		"even if the backup has another leader": func(s *server) {
			other := "other"
			s.lease.Spec.HolderIdentity = &other
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				leading := s.watched(t, "leader")
				synctest.Wait()
				following := s.watched(t, "follower")
				pass(time.Minute)
				s.mu.Lock()
				backup := s.lease.DeepCopy()
				s.mu.Unlock()
				pass(time.Minute)
				if leading.times()+following.times() != 0 {
					t.Error("a restore was noticed without one, want none")
				}
				s.mu.Lock()
				s.lease = backup
				then(s)
				s.mu.Unlock()
				pass(10 * time.Second)
				if l, f := leading.times(), following.times(); l != 1 || f != 1 {
					t.Errorf("within 10 s the leader noticed %d restores and the follower %d, want 1 and 1", l, f)
				}
				if leading.is() || following.is() {
					t.Error("a replica still leads after a restore, want none")
				}
			})
		})
	}
}

// noticed is a replica that ends when its cluster was restored, as the agent does.
type noticed struct {
	mu    sync.Mutex // guards the fields below
	count int
	leads bool
}

func (n *noticed) times() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

func (n *noticed) is() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leads
}

func (n *noticed) set(leads bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leads = leads
}

func (s *server) watched(t *testing.T, name string) *noticed {
	t.Helper()
	n := &noticed{}
	ctx, stop := context.WithCancel(t.Context())
	e := leader.New(leader.Options{
		Leases: client{server: s, cut: new(bool)}, Name: name, Follow: func() {}, Log: logr.Discard(),
		Lead: func(ctx context.Context) {
			n.set(true)
			<-ctx.Done()
			n.set(false)
		},
		Restored: func() {
			n.mu.Lock()
			n.count++
			n.mu.Unlock()
			stop()
		},
	})
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return n
}

func TestTermComesFromTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		leases := client{server: s, cut: new(bool)}
		term := func() string {
			t.Helper()
			term, err := leader.Term(t.Context(), leases)
			if err != nil {
				t.Fatal(err)
			}
			return term.Term
		}
		if got := term(); got != "" {
			t.Errorf("without a Lease: got the term %q, want none", got)
		}
		a := s.join(t, "a")
		expect(t, a, "t")
		first := term()
		pass(time.Minute)
		if now := term(); now != first || now == "" {
			t.Errorf("after a minute of one leader: got the term %q, want %q", now, first)
		}
		expect(t, s.join(t, "a"), "t") // the container was restarted, and leads again under the same name
		if now := term(); now == first {
			t.Errorf("got the term %q again, want another one for another process", now)
		}
	})
}

func TestForbiddenIsRecognizedByItsCode(t *testing.T) {
	t.Parallel()
	if !apierrors.IsForbidden(apierrors.NewGenericServerResponse(http.StatusForbidden, "get", resource, "x", "no", 0,
		true)) {
		t.Error("the error of a raw request is not recognized as forbidden, want it recognized")
	}
}
