// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"net/http"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/drover-dev/drover/internal/members"
)

// failure describes why a set was not delivered.
type failure struct {
	count   int
	refused bool // set if the agent rejected the set; a retry is then unlikely to help
	lost    bool // set if the agent had the set and reports that it no longer has it
	message string
	retryAt time.Time
}

// retries decides when to send a set again. The Store's lock protects it.
type retries struct {
	backoff workqueue.TypedRateLimiter[target]
}

// failed records that a set could not be sent or removed.
func (r retries) failed(m *member, id string, err error) {
	t := target{m.name, id}
	wait := r.backoff.When(t)
	refused := members.IsStatus(err, http.StatusUnprocessableEntity) ||
		members.IsStatus(err, http.StatusRequestEntityTooLarge)
	if refused {
		wait = maxPause
	}
	count, retryAt := r.backoff.NumRequeues(t), time.Now().Add(wait)
	m.failed[id] = &failure{count: count, refused: refused, message: err.Error(), retryAt: retryAt}
}

// lost records that a member no longer has a set that it once had. The pauses before the set is sent again grow as long
// as the member keeps losing it.
func (r retries) lost(m *member, id string) {
	if f := m.failed[id]; f != nil && time.Since(f.retryAt) > maxPause {
		r.clear(m, id)
	}
	wait := r.backoff.When(target{m.name, id})
	m.failed[id] = &failure{lost: true, message: "the agent has lost the set", retryAt: time.Now().Add(wait)}
}

func (r retries) clear(m *member, id string) {
	if m.failed[id] != nil {
		delete(m.failed, id)
		r.backoff.Forget(target{m.name, id})
	}
}

func (r retries) clearAll(m *member) {
	for id := range m.failed {
		r.clear(m, id)
	}
}
