// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package refusal rejects requests with a Kubernetes Status.
package refusal

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons for which Kubernetes has no constants. kubectl prints them unchanged.
const (
	// ReasonBadGateway means that the upstream server did not respond.
	ReasonBadGateway metav1.StatusReason = "BadGateway"
	// ReasonGatewayTimeout means that the upstream server did not respond in time.
	ReasonGatewayTimeout metav1.StatusReason = "GatewayTimeout"
	// ReasonHeaderTooLarge means that the headers of a request are too large.
	ReasonHeaderTooLarge metav1.StatusReason = "RequestHeaderFieldsTooLarge"
)

// Error explains why a request is rejected. It contains a message for the caller, and a cause that is only logged. It
// implements apierrors.APIStatus, so functions such as apierrors.IsForbidden recognize it.
type Error struct {
	code    int
	reason  metav1.StatusReason
	message string
	cluster *types.NamespacedName
	retry   retry
	cause   error
}

// retry is when the caller can try again. The zero value means that the response does not specify a time.
type retry struct {
	after time.Duration
	at    time.Time
}

// New returns a refusal with an HTTP status code. The message is for the caller and should say what to do.
func New(code int, reason metav1.StatusReason, message string) *Error {
	return &Error{code: code, reason: reason, message: message}
}

// BadRequest refuses a request that cannot be interpreted safely.
func BadRequest(message string) *Error {
	return New(http.StatusBadRequest, metav1.StatusReasonBadRequest, message)
}

// Unauthorized refuses a caller that is not authenticated.
func Unauthorized(message string) *Error {
	return New(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, message)
}

// Forbidden refuses an authenticated caller.
func Forbidden(message string) *Error {
	return New(http.StatusForbidden, metav1.StatusReasonForbidden, message)
}

// Unavailable refuses a request temporarily. Kubernetes clients try again after a second, up to ten times.
func Unavailable(message string) *Error {
	e := New(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, message)
	e.retry = retry{after: time.Second}
	return e
}

// TooManyRequests refuses a request temporarily, because a limit has been reached. Kubernetes clients try again, up to
// ten times. The after parameter is the time until the next attempt, rounded up to whole seconds. It should differ
// between callers, so that they do not all retry at the same time.
func TooManyRequests(message string, after time.Duration) *Error {
	e := New(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, message)
	e.retry = retry{after: max(after, time.Second)}
	return e
}

// Because returns a copy of e that contains a cause. The caller does not see the cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// About returns a copy of e that names the affected Cluster in the details of the Status.
func (e *Error) About(cluster types.NamespacedName) *Error {
	c := *e
	c.cluster = &cluster
	return &c
}

// RetryAt returns a copy of e that asks the caller to retry at a given time rather than after a number of seconds.
// Kubernetes clients do not wait for that time. For example, kubectl shows the message immediately instead of trying
// ten times.
func (e *Error) RetryAt(at time.Time) *Error {
	c := *e
	c.retry = retry{at: at}
	return &c
}

// Error returns the message and the cause.
func (e *Error) Error() string {
	if e.cause == nil {
		return e.message
	}
	return e.message + ": " + e.cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Status returns the Status that the caller receives.
func (e *Error) Status() metav1.Status {
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     int32(e.code),
		Reason:   e.reason,
		Message:  e.message,
	}
	if e.cluster != nil {
		s.Details = &metav1.StatusDetails{Group: "cluster.drover.dev", Kind: "clusters", Name: e.cluster.Name}
	}
	if seconds := e.retry.seconds(); seconds > 0 {
		if s.Details == nil {
			s.Details = &metav1.StatusDetails{}
		}
		s.Details.RetryAfterSeconds = int32(min(seconds, math.MaxInt32))
	}
	return s
}

func (r retry) seconds() int64 {
	return int64((r.after + time.Second - 1) / time.Second)
}

// header returns the value of the Retry-After header, or an empty string if the header is not needed.
func (r retry) header() string {
	switch {
	case !r.at.IsZero():
		return r.at.UTC().Format(http.TimeFormat)
	case r.after > 0:
		return strconv.FormatInt(r.seconds(), 10)
	}
	return ""
}

// Of returns the refusal in err. If err contains no refusal, Of returns a refusal that does not reveal err to the
// caller.
func Of(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return New(http.StatusGatewayTimeout, ReasonGatewayTimeout, "the request took too long; try again").Because(err)
	}
	return New(http.StatusInternalServerError, metav1.StatusReasonInternalError,
		"the hub could not serve the request; its log says why").Because(err)
}

// Write writes the refusal in err as the response. See Of.
func Write(w http.ResponseWriter, err error) {
	e := Of(err)
	status := e.Status()
	h := w.Header()
	if e.code == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if after := e.retry.header(); after != "" {
		h.Set("Retry-After", after)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	body, err := json.Marshal(&status)
	if err != nil { // a Status can always be marshaled; even without a body, the status code would suffice
		w.WriteHeader(e.code)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.code)
	_, _ = w.Write(body) // a caller that has disconnected needs no response
}
