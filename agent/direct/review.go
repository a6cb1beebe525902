// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Paths that an API server requests.
const (
	pathDiscovery = "/.well-known/openid-configuration"
	pathKeys      = "/keys"
	pathReview    = "/v1/authenticate"
	pathReady     = "/readyz"
	pathMetrics   = "/metrics"
)

const (
	// maxReview is the maximum size of the body of a review, in bytes. The body contains a token and the API server's
	// audiences.
	maxReview = 64 << 10
	// maxReviews is the maximum number of reviews in progress. Each review verifies a signature.
	maxReviews = 64
)

// noKeys is a JSON Web Key Set that verifies no token.
const noKeys = `{"keys":[]}`

// discovery is the part of an issuer's metadata that an API server reads (OpenID Connect Discovery, section 3).
type discovery struct {
	Issuer        string   `json:"issuer"`
	Keys          string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
}

// reviews returns the handler for the node's API server. It serves the issuer's keys for --authentication-config and
// token reviews for --authentication-token-webhook-config-file. A client can obtain only the issuer's public data and
// the user named in a token that the client already has.
func (e *Endpoint) reviews() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathDiscovery, e.discover)
	mux.HandleFunc("GET "+pathKeys, e.publish)
	mux.HandleFunc("POST "+pathReview, e.review)
	mux.Handle("GET "+pathMetrics, e.Metrics())
	mux.HandleFunc("GET "+pathReady, func(w http.ResponseWriter, _ *http.Request) {
		if current := e.access.Load(); current == nil || current.usable(e.options.Now()) != nil {
			http.Error(w, "there are no keys, or they are too old", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n") // an error means that the prober has disconnected
	})
	return mux
}

func (e *Endpoint) discover(w http.ResponseWriter, _ *http.Request) {
	current, at := e.access.Load(), e.address.Load()
	if current == nil || at == nil {
		forward.WriteStatus(w, http.StatusServiceUnavailable, errOff.Error())
		return
	}
	answer(w, discovery{
		Issuer: current.Issuer, Keys: "https://" + (*at).String() + pathKeys, ResponseTypes: []string{"id_token"},
		SubjectTypes: []string{"public"}, Algorithms: []string{"ES256"},
	})
}

// publish serves the issuer's keys. While all tokens are refused, it serves an empty key set. An API server that
// requests the keys again then no longer accepts any tokens.
func (e *Endpoint) publish(w http.ResponseWriter, _ *http.Request) {
	current := e.access.Load()
	if current == nil {
		forward.WriteStatus(w, http.StatusServiceUnavailable, errOff.Error())
		return
	}
	keys := current.Keys
	if current.usable(e.options.Now()) != nil {
		keys = json.RawMessage(noKeys)
	}
	answer(w, keys)
}

// review responds to a TokenReview. A refused token is not an error. If a token cannot be checked, the response
// contains an error, which the API server logs.
func (e *Endpoint) review(w http.ResponseWriter, r *http.Request) {
	select {
	case e.reviewing <- struct{}{}:
		defer func() { <-e.reviewing }()
	default:
		w.Header().Set("Retry-After", "1")
		forward.WriteStatus(w, http.StatusTooManyRequests, "too many tokens are reviewed at once")
		return
	}
	asked, err := readReview(http.MaxBytesReader(w, r.Body, maxReview))
	if err != nil {
		forward.WriteStatus(w, http.StatusBadRequest, err.Error())
		return
	}
	out := authenticationv1.TokenReview{TypeMeta: asked.TypeMeta}
	var user known
	if current := e.access.Load(); current == nil {
		err = errOff
	} else {
		user, err = current.verify(asked.Spec.Token, e.options.Now())
	}
	switch {
	case err == nil:
		e.metrics.reviewAccepted.Add(1)
		out.Status.Authenticated = true
		out.Status.User = authenticationv1.UserInfo{Username: user.Subject, UID: user.UID, Groups: user.Groups}
	case unusable(err):
		e.metrics.reviewUnknown.Add(1)
		out.Status.Error = err.Error()
	default:
		e.metrics.reviewRefused.Add(1)
	}
	if err != nil {
		e.complaints.Do(func() { e.options.Log.Info("token refused", "reason", err.Error()) })
	}
	answer(w, out)
}

// readReview decodes a TokenReview in either API version. The two versions have the same fields. The errors contain
// no data from the review.
func readReview(body io.Reader) (*authenticationv1.TokenReview, error) {
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("the review is incomplete or longer than %d bytes", maxReview)
	}
	review := &authenticationv1.TokenReview{}
	if untrusted.JSON(raw, review, untrusted.Small()) != nil {
		return nil, errors.New("the review is not a TokenReview in JSON")
	}
	versions := metav1.TypeMeta{Kind: "TokenReview", APIVersion: authenticationv1.SchemeGroupVersion.String()}
	if review.TypeMeta != versions &&
		review.TypeMeta != (metav1.TypeMeta{Kind: versions.Kind, APIVersion: "authentication.k8s.io/v1beta1"}) {
		return nil, errors.New("the review must have the version authentication.k8s.io/v1 or v1beta1")
	}
	if review.Spec.Token == "" {
		return nil, errors.New("the review has no token")
	}
	return review, nil
}

func answer(w http.ResponseWriter, content any) {
	raw, err := json.Marshal(content)
	if err != nil {
		forward.WriteStatus(w, http.StatusInternalServerError, "the response cannot be encoded")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// Responses must not be cached: an API server that encounters an unknown key must receive the current keys.
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(raw) // an error means that the client has disconnected
}

// IsLoopback reports whether the host in a listen address is a loopback IP address, which only clients on the same
// machine can reach. Host names, such as localhost, are not accepted.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
