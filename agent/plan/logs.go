// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// logTimeout is the timeout for reading a log. It is needed because the node's kubelet may be unreachable.
	logTimeout = 5 * time.Second
	// maxLog is the maximum number of bytes of a log that are kept. The schema of Plans contains the same limit.
	maxLog = 1024
)

// logs holds the last lines of the logs of failed Jobs. Each log is read once.
type logs struct {
	member apiClient
	ended  func() // called when a log has been read

	mu  sync.Mutex // guards the fields below
	all map[string]*lines
}

// lines is the end of a log.
type lines struct {
	read bool
	text string
}

func newLogs(m apiClient, ended func()) *logs {
	return &logs{member: m, ended: ended, all: map[string]*lines{}}
}

// of returns the log of a Job, and reports whether the log has been read. The first call for a UID starts to read the
// log in the background, and adds this work to the running wait group.
func (l *logs) of(ctx context.Context, running *sync.WaitGroup, uid, job string) (text string, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one, asked := l.all[uid]; asked {
		return one.text, one.read
	}
	one := &lines{}
	l.all[uid] = one
	running.Go(func() {
		defer l.ended()
		text := l.fetch(ctx, job)
		l.mu.Lock()
		defer l.mu.Unlock()
		one.read, one.text = true, text
	})
	return "", false
}

// keep drops the logs of all Jobs that are not in jobs.
func (l *logs) keep(jobs []knownJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.all, func(uid string, _ *lines) bool {
		return !slices.ContainsFunc(jobs, func(j knownJob) bool { return j.uid == uid })
	})
}

// fetch reads the log of the latest pod of a Job. It returns "" if it cannot read the log.
func (l *logs) fetch(ctx context.Context, job string) string {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	pods, err := l.member.pods(ctx, pathPods, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
	if err != nil || len(pods.Items) == 0 {
		return ""
	}
	last := &pods.Items[0]
	for i := range pods.Items {
		if p := &pods.Items[i]; last.CreationTimestamp.Before(&p.CreationTimestamp) {
			last = p
		}
	}
	text, err := l.member.log(ctx, last.Name)
	if err != nil {
		return ""
	}
	return tail(text)
}

// tail returns the end of a text. The result has at most logLines lines and maxLog bytes, and starts with a complete
// character.
func tail(text string) string {
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(text, "?"), "\n"), "\n")
	text = strings.Join(lines[max(0, len(lines)-logLines):], "\n")
	if len(text) > maxLog {
		text = strings.ToValidUTF8(text[len(text)-maxLog:], "")
	}
	return text
}
