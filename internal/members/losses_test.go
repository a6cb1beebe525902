// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestMembersLostTogetherAreExpectedBack(t *testing.T) {
	const fleet = 10_000
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	burst := func(l *losses, at time.Time, n int) {
		for range n {
			l.lost(at)
		}
	}
	for name, tt := range map[string]struct {
		happens func(*losses)
		lost    time.Duration // after the start
		want    time.Duration // after the start; 0 if the member is not expected
	}{
		"as many as the hub admits in a second count as few": {func(l *losses) { burst(l, start, admittedPerSecond) }, 0, 0},
		"one more counts as many": {
			func(l *losses) { burst(l, start, admittedPerSecond+1) }, 0, ReturnTime + AdmissionTime(admittedPerSecond+1),
		},
		"the whole fleet is lost": {
			func(l *losses) { burst(l, start, fleet) }, 0, ReturnTime + 25*time.Second,
		},
		"a few are lost each second": {func(l *losses) {
			for second := range 60 {
				burst(l, start.Add(time.Duration(second)*time.Second), admittedPerSecond/2)
			}
		}, 0, 0},
		"one comes and goes all the time": {func(l *losses) {
			for range fleet {
				l.lost(start)
				l.returned()
			}
		}, 0, 0},
		"later losses do not delay the time endlessly": {func(l *losses) {
			for minute := range 10 {
				burst(l, start.Add(time.Duration(minute)*time.Minute), fleet)
			}
		}, 0, ReturnTime + 25*time.Second},
		"a member is lost while many come back": {func(l *losses) {
			burst(l, start,
				fleet)
			l.lost(start.Add(10 * time.Second))
		}, 10 * time.Second,
			ReturnTime + 25*time.Second + AdmissionTime(1)},
		"members that return do not shorten the time of the others": {func(l *losses) {
			burst(l, start, fleet)
			for range fleet / 2 {
				l.returned()
			}
			l.lost(start.Add(time.Second))
		}, 0, ReturnTime + 25*time.Second},
		"the queue never has less than no places": {func(l *losses) {
			l.lost(start)
			l.returned()
			l.returned()
			burst(l,
				start, admittedPerSecond+1)
		}, 0,
			ReturnTime + AdmissionTime(admittedPerSecond+1)},
	} {
		t.Run(name, func(t *testing.T) {
			var l losses
			tt.happens(&l)
			want := time.Time{}
			if tt.want > 0 {
				want = start.Add(tt.want)
			}
			if got := l.returning(start.Add(tt.lost), fleet); !got.Equal(want) {
				t.Errorf("a member lost at %s is expected until %s, want %s", start.Add(tt.lost), got, want)
			}
		})
	}
}

func TestLossesAtAllReplicasAreCounted(t *testing.T) {
	const many = 1000
	cluster := func(i int) types.NamespacedName {
		return types.NamespacedName{Namespace: "team-a", Name: fmt.Sprint("member-", i)}
	}
	peer := func(i int) Peer {
		return Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: cluster(i).Name}, Key: "key", Instance: "one",
			ID: fmt.Sprint("tunnel-", i)}
	}
	remote := func(i int, loss *Loss) Record {
		record := Record{Namespace: "team-a", Name: cluster(i).Name, Loss: loss}
		if loss == nil {
			record.Tunnels = []Peer{peer(i)}
		}
		return record
	}
	var tunnels [many]*tunnelStub
	for name, tt := range map[string]struct {
		connect, cut func(r *Registry, mirror *Mirror)
	}{
		"their tunnels ended here": {
			func(r *Registry, _ *Mirror) {
				for i := range many {
					tunnels[i] = silent()
					r.Add(peer(i), tunnels[i])
				}
			},
			func(*Registry, *Mirror) {
				for i := range many {
					tunnels[i].Close()
				}
			},
		},
		"another replica reports their loss": {
			func(_ *Registry, mirror *Mirror) {
				for i := range many {
					mirror.Update(remote(i, nil))
				}
			},
			func(_ *Registry, mirror *Mirror) {
				for i := range many {
					mirror.Update(remote(i, &Loss{At: time.Now()}))
				}
			},
		},
		"another replica reports them only after their loss": {
			func(*Registry, *Mirror) {},
			func(_ *Registry, mirror *Mirror) {
				for i := range many {
					mirror.Update(remote(i, &Loss{At: time.Now()}))
				}
			},
		},
		"another replica is gone": {
			func(_ *Registry, mirror *Mirror) {
				for i := range many {
					mirror.Update(remote(i, nil))
				}
			},
			func(_ *Registry, mirror *Mirror) { mirror.Detach(); mirror.Close() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := New(logr.Discard(), time.Now)
				t.Cleanup(r.Close)
				mirror := r.Mirror("other")
				mirror.Begin(func(Peer) http.RoundTripper { return nil })
				for i := range many { // members that stay connected
					r.Add(peer(many+i), silent())
				}
				tt.connect(r, mirror)
				synctest.Wait()
				if got := r.State(cluster(7)).Returning; !got.IsZero() {
					t.Errorf("a connected member is expected until %s, want no time", got)
				}
				tt.cut(r, mirror)
				synctest.Wait()
				want := time.Now().Add(ReturnTime + AdmissionTime(many))
				if got := r.State(cluster(7)).Returning; !got.Equal(want) {
					t.Errorf("a member lost with %d others is expected until %s, want %s", many, got, want)
				}
				for range 3 { // half of them come back here and are lost again; each return makes the queue shorter
					sessions := make([]*tunnelStub, many/2)
					for i := range sessions {
						sessions[i] = silent()
						r.Add(peer(i), sessions[i])
					}
					synctest.Wait()
					for _, s := range sessions {
						s.Close()
					}
					synctest.Wait()
				}
				if got := r.State(cluster(many - 1)).Returning; !got.Equal(want) {
					t.Errorf("after others came and went, a lost member is expected until %s, want %s", got, want)
				}
			})
		})
	}
}

func TestDeletedClustersDoNotCountAsLost(t *testing.T) {
	cluster := func(i int) types.NamespacedName {
		return types.NamespacedName{Namespace: "team-a", Name: fmt.Sprint("member-", i)}
	}
	for name, open := range map[string]func(r *Registry, mirror *Mirror, i int) (end func()){
		"their tunnels end here": func(r *Registry, _ *Mirror, i int) func() {
			tunnel := silent()
			r.Add(Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: cluster(i).Name}, Key: "key"}, tunnel)
			return func() { tunnel.Close() }
		},
		"their tunnels end at another replica": func(_ *Registry, mirror *Mirror, i int) func() {
			record := Record{Namespace: "team-a", Name: cluster(i).Name}
			mirror.Update(Record{Namespace: record.Namespace, Name: record.Name,
				Tunnels: []Peer{{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: record.Name}, ID: record.Name}}})
			return func() { record.Loss = &Loss{At: time.Now()}; mirror.Update(record) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := New(logr.Discard(), time.Now)
				t.Cleanup(r.Close)
				mirror := r.Mirror("other")
				mirror.Begin(func(Peer) http.RoundTripper { return nil })
				for i := range 999 {
					end := open(r, mirror, i)
					r.Forget(cluster(i))
					end()
				}
				open(r, mirror, 999)()
				synctest.Wait()
				if got := r.State(cluster(999)).Returning; !got.IsZero() {
					t.Errorf("a member lost after 999 were deleted is expected until %s, want no time", got)
				}
			})
		})
	}
}
