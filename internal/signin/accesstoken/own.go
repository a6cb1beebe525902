// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package accesstoken

import (
	"net/http"
	"time"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/quietlog"
)

// Seen is how long the endpoints of an Own wait for a write to appear in the cache before they respond.
const Seen = 5 * time.Second

// Own serves users' requests for their own sessions and script tokens. Create one with NewOwn.
type Own struct {
	verifier *Verifier
	gate     *limit.Gate
	log      *quietlog.Log
}

// NewOwn returns an Own. It handles one request per user at a time, because listing a user's Secrets scans all labels
// in the cache.
func NewOwn(v *Verifier, log *quietlog.Log) *Own {
	gate := limit.NewGate(limit.Bounds{User: 1, All: 4, Queue: 64, QueueUser: 4, Wait: Seen}, limit.Observer{})
	return &Own{v, gate, log}
}

// Owner is the user of a request.
type Owner struct {
	identity.Identity
	// Session is the ID of the session that the request's token belongs to.
	Session string
	// Release lets the user's next request begin before this one has been answered.
	Release func()
}

// Action handles the request of an Owner. It returns the response.
type Action func(http.ResponseWriter, *http.Request, Owner) (any, error)

// Handler returns a handler that responds with the result of an Action and the given status code. It accepts only
// bearer tokens of a session that are valid for all clusters. Script tokens and tokens for one cluster must neither
// create other tokens nor end sessions. Browsers do not add bearer tokens to the requests of other sites.
func (o *Own) Handler(code int, do Action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := o.serve(w, r, do)
		if err != nil {
			e := refusal.Of(err)
			if e.Status().Code >= http.StatusInternalServerError {
				o.log.Complain(err, "request for a user's sessions or tokens not served")
			}
			audit.From(r.Context()).Refused(string(e.Status().Reason))
			refusal.Write(w, e)
			return
		}
		oauth.WriteJSON(w, code, oauth.NoStore, answer)
	}
}

func (o *Own) serve(w http.ResponseWriter, r *http.Request, do Action) (any, error) {
	raw, err := identity.Token(r)
	if err != nil {
		return nil, err
	}
	t, id, err := o.verifier.BySession(r.Context(), raw)
	if err != nil {
		return nil, err
	}
	audit.From(r.Context()).Identified(audit.User{Name: id.User, UID: id.UID}, nil)
	seat, err := o.gate.Enter(r.Context(), limit.Requester{User: id.User})
	if err != nil {
		return nil, refusal.TooManyRequests("too many requests for sessions or tokens at the moment; try again",
			2*time.Second).Because(err)
	}
	defer seat.Release()
	return do(w, r, Owner{id, t.Session, seat.Release})
}
