// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/drover-dev/drover/internal/identity/decision"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/limit"
)

const (
	// acceptedFor is how long a revoked token may still be accepted.
	acceptedFor = 10 * time.Second
	// rejectedFor is how long a token that has just become valid may still be rejected.
	rejectedFor = 2 * time.Second
)

// Authenticator identifies callers by their bearer tokens. Use NewAuthenticator to create it. It is safe for concurrent
// use.
type Authenticator struct {
	reviews   authenticationv1client.TokenReviewInterface
	audiences Audiences
	known     *decision.Cache[reviewed]
}

// reviewed is the result of a token review: an Identity, or an error if the token was rejected.
type reviewed struct {
	id        Identity
	audiences []string // the audiences of the token; none if it is meant for the API server
	refused   *refusal.Error
}

// NewAuthenticator returns an Authenticator. It caches the user of a token for 10 s and a rejection for 2 s. If many
// new tokens are waiting for a review, the reviews are shared fairly among the addresses of the callers. A token that
// was accepted within the last hour never waits behind new tokens. A token for one of the audiences is valid only for
// that audience.
func NewAuthenticator(reviews authenticationv1client.TokenReviewInterface, audiences Audiences) *Authenticator {
	return &Authenticator{reviews: reviews, audiences: audiences, known: decision.New[reviewed]()}
}

// Authenticate returns the identity of the sender of r. Every error is a refusal: 401 if the token is missing or not
// accepted, 403 if it is meant for another destination, and 503 if the API server cannot be reached.
func (a *Authenticator) Authenticate(r *http.Request) (Identity, error) {
	token, err := Token(r)
	if err != nil {
		return Identity{}, err
	}
	key := sha256.Sum256([]byte(token))
	found, err := a.known.Get(r.Context(), key, limit.Source(r.RemoteAddr),
		func(ctx context.Context) (decision.Result[reviewed], error) { return a.review(ctx, token) })
	var full *limit.FullError
	switch {
	case errors.As(err, &full):
		return Identity{}, refusal.TooManyRequests(
			"too many logins from your address are waiting for the hub's API server; try again", 2*time.Second).Because(err)
	case err != nil:
		return Identity{}, refusal.Unavailable(
			"the hub could not ask its API server for the user of the token; try again").Because(err)
	}
	if found.refused != nil {
		return Identity{}, found.refused
	}
	if len(found.audiences) > 0 {
		if err := a.audiences.admit(r, found.audiences); err != nil {
			return Identity{}, err
		}
	}
	return found.id, nil
}

func (a *Authenticator) review(ctx context.Context, token string) (decision.Result[reviewed], error) {
	asked := a.audiences.of(token) // without audiences, the API server checks that the token is meant for itself
	review, err := a.reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: asked},
	}, metav1.CreateOptions{})
	if err != nil {
		return decision.Result[reviewed]{}, fmt.Errorf("review token: %w", err)
	}
	if !review.Status.Authenticated {
		return rejected(refusal.Unauthorized("the hub does not accept the token; it may have expired, log in again")), nil
	}
	confirmed := slices.DeleteFunc(asked, func(audience string) bool {
		return !slices.Contains(review.Status.Audiences, audience)
	})
	if len(asked) > 0 && len(confirmed) == 0 {
		return rejected(refusal.Unauthorized("the hub's API server does not confirm the audience of the token")), nil
	}
	id, err := New(review.Status.User)
	if err != nil {
		return rejected(refusal.Unauthorized("the token's user has a name that the hub can't pass on").Because(err)), nil
	}
	return decision.Result[reviewed]{Value: reviewed{id: id, audiences: confirmed}, For: acceptedFor, Yes: true}, nil
}

func rejected(why *refusal.Error) decision.Result[reviewed] {
	return decision.Result[reviewed]{Value: reviewed{refused: why}, For: rejectedFor}
}
