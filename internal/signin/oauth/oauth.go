// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oauth contains the parts of OAuth 2.0 that all endpoints of the issuer share: the client, forms, responses,
// and errors.
package oauth

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/quietlog"
)

// Paths of the issuer that several packages use.
const (
	PathDevice = "/v1/auth/device"
	// PathPage is the path of the portal. Users can also sign in to the portal itself.
	PathPage = "/ui/"
)

// ClientID is the only client ID. kubectl and its sign-in plugins use this ID. The client is public and has no secret,
// so it must use PKCE.
const ClientID = "kubectl"

// The scopes that the issuer supports. Other scopes are ignored. ScopeOffline does not require prompt=consent, because
// the user enters a password for every login.
const (
	ScopeOpenID  = "openid"
	ScopeOffline = "offline_access"
)

// MaxField is the maximum length of a field in a request, in bytes.
const MaxField = 1 << 10

// TooMany is the error code that tells a user or a device to wait.
const TooMany = "temporarily_unavailable"

// Error is an OAuth 2.0 error.
type Error struct {
	Code        string
	Description string
}

// Error implements error.
func (e *Error) Error() string { return e.Code + ": " + e.Description }

// Later is an Error for a request that can be retried after a delay.
type Later struct {
	After time.Duration
	Err   Error
}

// Error implements error.
func (e *Later) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped Error.
func (e *Later) Unwrap() error { return &e.Err }

// Invalid returns an Error with the code invalid_request.
func Invalid(format string, args ...any) *Error {
	return &Error{"invalid_request", fmt.Sprintf(format, args...)}
}

// Refuse sends an error response to a client. If err is not an Error, it is logged, and its text is not sent to the
// client.
func Refuse(w http.ResponseWriter, r *http.Request, log *quietlog.Log, err error) {
	var problem *Error
	if !errors.As(err, &problem) {
		log.Complain(err, "request of a client not served")
		w.Header().Set("Retry-After", "1")
		WriteJSON(w, http.StatusServiceUnavailable, NoStore,
			map[string]string{"error": TooMany, "error_description": "the hub cannot do this at the moment; try again"})
		return
	}
	audit.From(r.Context()).Refused(problem.Code)
	status := http.StatusBadRequest
	var wait *Later
	switch {
	case problem.Code == "invalid_client":
		status = http.StatusUnauthorized
		// RFC 6749, section 5.2, requires this header only if the request has an Authorization header. Otherwise, the
		// header is omitted, so that no other site can redirect a browser here and make it prompt for a password.
		if r.Header.Get("Authorization") != "" {
			w.Header().Set("WWW-Authenticate", "Basic")
		}
	case errors.As(err, &wait):
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", strconv.Itoa(int(wait.After/time.Second)))
	}
	WriteJSON(w, status, NoStore, map[string]string{"error": problem.Code, "error_description": problem.Description})
}

// DigestLength is the length of a digest, in characters.
const DigestLength = 43

// Digest returns the SHA-256 hash of a string, encoded in base64url.
func Digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// IsDigest reports whether a string has the format of a digest.
func IsDigest(s string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(s) == DigestLength && len(raw) == sha256.Size
}

// AudienceCluster is the prefix of an audience for one cluster. The rest of the audience is <namespace>/<name>.
const AudienceCluster = "cluster:"

// ClusterOf returns the cluster (<namespace>/<name>) in an audience, and reports whether the audience is valid for one
// cluster.
func ClusterOf(audience string) (cluster string, one bool) {
	cluster, one = strings.CutPrefix(audience, AudienceCluster)
	return cluster, one && IsCluster(cluster)
}

// IsCluster reports whether a string has the form <namespace>/<name> with a valid namespace and a valid Cluster name.
func IsCluster(s string) bool {
	namespace, name, _ := strings.Cut(s, "/")
	return len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
}
