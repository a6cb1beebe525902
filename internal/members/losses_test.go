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

func TestOneOfManyThatAreLostAtTheSameTimeMayBeOnItsWayBack(t *testing.T) {
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
		want    time.Duration // after the start, 0 for at once
	}{
		"as many as the hub admits in a second are few": {func(l *losses) { burst(l, start, admittedPerSecond) }, 0, 0},
		"one more is many":   {func(l *losses) { burst(l, start, admittedPerSecond+1) }, 0, ReturnTime + AdmissionTime(admittedPerSecond+1)},
		"of the whole fleet": {func(l *losses) { burst(l, start, fleet) }, 0, ReturnTime + 25*time.Second},
		"of few that are lost each second": {func(l *losses) {
			for second := range 60 {
				burst(l, start.Add(time.Duration(second)*time.Second), admittedPerSecond/2)
			}
		}, 0, 0},
		"of one that comes and goes all the time": {func(l *losses) {
			for range fleet {
				l.lost(start)
				l.returned()
			}
		}, 0, 0},
		"others that are lost later do not hold it up without end": {func(l *losses) {
			for minute := range 10 {
				burst(l, start.Add(time.Duration(minute)*time.Minute), fleet)
			}
		}, 0, ReturnTime + 25*time.Second},
		"a member that is lost while many come back": {func(l *losses) { burst(l, start, fleet); l.lost(start.Add(10 * time.Second)) }, 10 * time.Second,
			ReturnTime + 25*time.Second + AdmissionTime(1)},
		"returns do not take away the time of those that are still away": {func(l *losses) {
			burst(l, start, fleet)
			for range fleet / 2 {
				l.returned()
			}
			l.lost(start.Add(time.Second))
		}, 0, ReturnTime + 25*time.Second},
		"a queue that is empty does not go below": {func(l *losses) { l.lost(start); l.returned(); l.returned(); burst(l, start, admittedPerSecond+1) }, 0,
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
				t.Errorf("one lost at %s is awaited until %s, want %s", start.Add(tt.lost), got, want)
			}
		})
	}
}

func TestLossesHereAndAtOtherReplicasAreCounted(t *testing.T) {
	const many = 1000
	cluster := func(i int) types.NamespacedName {
		return types.NamespacedName{Namespace: "team-a", Name: fmt.Sprint("member-", i)}
	}
	peer := func(i int) Peer {
		return Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: cluster(i).Name}, Key: "key", Instance: "one", ID: fmt.Sprint("tunnel-", i)}
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
		"this replica hears of another only when they are lost": {
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
				for i := range many { // those that stay
					r.Add(peer(many+i), silent())
				}
				tt.connect(r, mirror)
				synctest.Wait()
				if got := r.State(cluster(7)).Returning; !got.IsZero() {
					t.Errorf("a connected member is awaited until %s", got)
				}
				tt.cut(r, mirror)
				synctest.Wait()
				want := time.Now().Add(ReturnTime + AdmissionTime(many))
				if got := r.State(cluster(7)).Returning; !got.Equal(want) {
					t.Errorf("a member that was lost with %d is awaited until %s, want %s", many, got, want)
				}
				for range 3 { // they are back, here, and lost again: each return makes the queue shorter
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
					t.Errorf("a member that stayed away is awaited until %s after others came and went, want %s", got, want)
				}
			})
		})
	}
}

func TestAClusterThatIsDeletedIsNoLoss(t *testing.T) {
	cluster := func(i int) types.NamespacedName {
		return types.NamespacedName{Namespace: "team-a", Name: fmt.Sprint("member-", i)}
	}
	for name, open := range map[string]func(r *Registry, mirror *Mirror, i int) (end func()){
		"whose tunnel ends here": func(r *Registry, _ *Mirror, i int) func() {
			tunnel := silent()
			r.Add(Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: cluster(i).Name}, Key: "key"}, tunnel)
			return func() { tunnel.Close() }
		},
		"whose tunnel ends at another replica": func(_ *Registry, mirror *Mirror, i int) func() {
			record := Record{Namespace: "team-a", Name: cluster(i).Name}
			mirror.Update(Record{Namespace: record.Namespace, Name: record.Name, Tunnels: []Peer{{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: record.Name}, ID: record.Name}}})
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
					t.Errorf("one that is lost after 999 were deleted is awaited until %s", got)
				}
			})
		})
	}
}
