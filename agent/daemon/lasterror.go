// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// These constants control the annotation that contains the agent's last error.
const (
	// errorSettles is how long the agent waits without a tunnel before it writes the cause to the annotation. When a hub
	// restarts, agents usually reconnect sooner, so they do not write the annotation.
	errorSettles = 10 * time.Second
	// errorPause is the minimum time between writing two different errors.
	errorPause = time.Minute
	// annotateTimeout is the timeout for writing the annotation.
	annotateTimeout = 10 * time.Second
	// maxLastError is the maximum length of the error, in bytes.
	maxLastError = 512
)

// lastError maintains an annotation in the cluster with the reason why the agent is not connected. The annotation is
// for users who cannot reach the hub. It writes only when the reason changes.
type lastError struct {
	write func(ctx context.Context, text string) error
	wake  chan struct{}
	log   logr.Logger

	mu   sync.Mutex // guards the fields below
	text string     // "" while a tunnel is open
	told bool       // whether the link has ever reported its state
}

// newLastError returns a lastError. The write function sets the annotation to a text, or removes the annotation if the
// text is empty.
func newLastError(write func(ctx context.Context, text string) error, log logr.Logger) *lastError {
	return &lastError{write: write, wake: make(chan struct{}, 1), log: log}
}

// annotate returns a function that sets the annotation of the agent's Deployment. Every new leader removes the
// annotation, but usually there is none. The function therefore reads the Deployment first, because a read is cheaper
// for the API server than a write.
func annotate(get func(context.Context) (*appsv1.Deployment, error),
	set func(ctx context.Context, key, value string) error) func(context.Context, string) error {
	return func(ctx context.Context, text string) error {
		if text == "" {
			live, err := get(ctx)
			if err != nil {
				return err
			}
			if _, ok := live.Annotations[v1.AnnotationAgentLastError]; !ok {
				return nil
			}
		}
		return set(ctx, v1.AnnotationAgentLastError, text)
	}
}

// tell records the reason why there is no tunnel. The reason is empty if a tunnel is open. tell does not block.
func (e *lastError) tell(why string) {
	e.mu.Lock()
	e.text, e.told = Presentable(why), true
	e.mu.Unlock()
	await.Signal(e.wake)
}

func (e *lastError) state() (text string, told bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text, e.told
}

// lead keeps the annotation up to date until ctx is done. Only the leader does this, because the replicas share one
// annotation. The annotation therefore describes the leader's connection.
func (e *lastError) lead(ctx context.Context) {
	var failing, next time.Time // when the tunnel was lost; the earliest time to write another error
	const unknown = "text that another process wrote, or that may have been written although the write failed"
	written := unknown
	await.Loop(ctx, e.wake, func(ctx context.Context) time.Duration {
		text, told := e.state()
		if text == "" {
			failing = time.Time{}
		} else if failing.IsZero() {
			failing = time.Now()
		}
		if !told || text == written {
			return 0
		}
		due := next
		if settled := failing.Add(errorSettles); text != "" && settled.After(due) {
			due = settled
		}
		if wait := time.Until(due); wait > 0 && (text != "" || written == "") {
			return wait
		}
		put := e.put(ctx, text)
		next = time.Now().Add(errorPause)
		if !put {
			written = unknown
			return errorPause
		}
		written = text
		return 0
	})
}

// put writes the text with the current time. It returns false if the write should be retried.
func (e *lastError) put(ctx context.Context, text string) bool {
	ctx, cancel := context.WithTimeout(ctx, annotateTimeout)
	defer cancel()
	if text != "" {
		text = time.Now().UTC().Format(time.RFC3339) + ": " + text
	}
	err := e.write(ctx, text)
	if err != nil && ctx.Err() == nil {
		e.log.V(1).Info("cannot write the last error into the cluster", "error", err.Error())
	}
	// An agent that runs outside the cluster may have no Deployment.
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

var (
	// credentials matches the user and password in a URL, bearer tokens, and JSON Web Tokens. A password may contain
	// any characters except white space and quotation marks, because these end the URL.
	credentials = regexp.MustCompile(`://[^\s"]*@|(?i:bearer)\s+\S+|eyJ[\w-]+\.[\w-]+\.[\w-]*`)
	// currentTime matches the time in crypto/x509's error about a certificate that has expired or is not valid yet.
	currentTime = regexp.MustCompile(`\bcurrent time \S+ is `)
	// sourceAddress matches the source address of a connection. The port in this address differs with each attempt.
	sourceAddress = regexp.MustCompile(`\S+:\d+->`)
)

// Presentable prepares an error for display to users. The result is a single line without credentials. The same
// problem always results in the same text.
func Presentable(text string) string {
	text = credentials.ReplaceAllStringFunc(text, func(found string) string {
		if strings.HasPrefix(found, "://") {
			return "://***@"
		}
		return "***"
	})
	text = currentTime.ReplaceAllString(sourceAddress.ReplaceAllString(text, ""), "the current time is ")
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	return protocol.Cut(text, maxLastError)
}
