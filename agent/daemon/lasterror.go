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
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/protocol"
)

// Timing of the annotation with the last error.
const (
	// errorSettles is how long the agent is without a tunnel before it says why. The agents of a hub that restarts are
	// back earlier, and write nothing.
	errorSettles = 10 * time.Second
	// errorPause is the least time between two different errors in the annotation.
	errorPause = time.Minute
	// annotateTimeout bounds one write.
	annotateTimeout = 10 * time.Second
	// maxLastError is the maximum length of the error in bytes.
	maxLastError = 512
)

// lastError writes into the cluster why the agent is not connected, for users who cannot ask the hub. It writes only
// when the reason changes.
type lastError struct {
	write func(ctx context.Context, text string) error
	wake  chan struct{}
	log   logr.Logger

	mu   sync.Mutex // guards the fields below
	text string     // "" while a tunnel is open
	told bool       // whether the link has ever reported anything
}

// newLastError returns a lastError. write stores a text, or removes it if it is empty.
func newLastError(write func(ctx context.Context, text string) error, log logr.Logger) *lastError {
	return &lastError{write: write, wake: make(chan struct{}, 1), log: log}
}

// tell notes why there is no tunnel, or that there is one if why is empty. It does not block.
func (e *lastError) tell(why string) {
	e.mu.Lock()
	e.text, e.told = Presentable(why), true
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *lastError) state() (text string, told bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text, e.told
}

// lead keeps the annotation up to date until ctx ends. Only the leader among the replicas does that, because they share
// one annotation. The annotation therefore describes the leader's connection.
func (e *lastError) lead(ctx context.Context) {
	var failing, next time.Time // since when there is no tunnel; when another error may be written
	written := "what another process wrote"
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		case <-timer.C:
		}
		text, told := e.state()
		if text == "" {
			failing = time.Time{}
		} else if failing.IsZero() {
			failing = time.Now()
		}
		if !told || text == written {
			continue
		}
		due := next
		if settled := failing.Add(errorSettles); text != "" && settled.After(due) {
			due = settled
		}
		if wait := time.Until(due); wait > 0 && (text != "" || written == "") {
			timer.Reset(wait)
			continue
		}
		if e.put(ctx, text) {
			written = text
		} else {
			timer.Reset(errorPause)
		}
		next = time.Now().Add(errorPause)
	}
}

// put writes the text with the current time. It reports whether another attempt is of no use.
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
	// an agent outside of the cluster may have no Deployment
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

var (
	// credentials matches the user and password of a URL, bearer tokens, and JSON Web Tokens. A password may contain any
	// character except white space and quotation marks, which end the URL.
	credentials = regexp.MustCompile(`://[^\s"]*@|(?i:bearer)\s+\S+|eyJ[\w-]+\.[\w-]+\.[\w-]*`)
	// currentTime matches the time in crypto/x509's error about a certificate that has expired or is not valid yet.
	currentTime = regexp.MustCompile(`\bcurrent time \S+ is `)
	// sourceAddress matches the address from which a connection comes. Its port differs in each attempt.
	sourceAddress = regexp.MustCompile(`\S+:\d+->`)
)

// Presentable returns an error as others may see it: in one line, without credentials, and the same each time the same
// thing happens.
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
