// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// counter is the key of a watched ConfigMap whose value is the number of its last change.
const counter = "n"

// Watch follows a ConfigMap of a member whose counter is incremented by each change. Like an informer, it resumes after
// the last change that it has received. Use Start to start it.
type Watch struct {
	// Way and Cluster are the way and the member through which the watch connects.
	Way     *Way
	Cluster types.NamespacedName
	// Namespace and Name identify the ConfigMap.
	Namespace, Name string

	running sync.WaitGroup

	mu       sync.Mutex // guards what follows
	seen     int
	advanced chan struct{} // is closed when seen changes
	starts   int           // how often a watch was begun
	broken   []string      // how watches ended that did not end cleanly
	fault    error         // what must not happen
}

// Start starts the watch, which continues until ctx ends. Afterward, the caller must call Wait.
func (w *Watch) Start(ctx context.Context) error {
	maps, err := w.client()
	if err != nil {
		return err
	}
	object, err := maps.CoreV1().ConfigMaps(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read what to watch: %w", err)
	}
	if w.seen, err = strconv.Atoi(object.Data[counter]); err != nil {
		return fmt.Errorf("read the counter of %s: %w", w.Name, err)
	}
	w.advanced = make(chan struct{})
	quiet := logr.NewContext(ctx, logr.Discard())
	retrying, err := watchtools.NewRetryWatcherWithContext(quiet, object.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = "metadata.name=" + w.Name
			return w.begin(ctx, maps, options)
		},
	})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	w.running.Go(func() { w.follow(ctx, retrying) })
	return nil
}

// Wait returns when the watch has ended.
func (w *Watch) Wait() { w.running.Wait() }

func (w *Watch) client() (kubernetes.Interface, error) {
	client, err := w.Way.Client(w.Cluster)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// begin runs one watch and records how it ends. A clean end is the end of the stream without an error. A connection
// that breaks at that point also counts as clean, because client-go does not report it.
func (w *Watch) begin(ctx context.Context, maps kubernetes.Interface, options metav1.ListOptions) (watch.Interface, error) {
	one, err := maps.CoreV1().ConfigMaps(w.Namespace).Watch(ctx, options)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starts++
	if err != nil {
		if ctx.Err() == nil {
			w.broken = append(w.broken, fmt.Sprintf("%s %s does not begin: %v", time.Now().Format("15:04:05.000"), w.Way, err))
		}
		return nil, err
	}
	return watch.Filter(one, func(event watch.Event) (watch.Event, bool) {
		if status, ok := event.Object.(*metav1.Status); ok && event.Type == watch.Error && ctx.Err() == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.broken = append(w.broken, fmt.Sprintf("%s %s: %d %s", time.Now().Format("15:04:05.000"), w.Way, status.Code, status.Message))
		}
		return event, true
	}), nil
}

func (w *Watch) follow(ctx context.Context, retrying *watchtools.RetryWatcher) {
	defer retrying.Stop()
	for event := range retrying.ResultChan() {
		if err := w.take(event); err != nil {
			w.fail(err)
			return
		}
	}
	if ctx.Err() == nil {
		w.fail(errors.New("the watch gave up"))
	}
}

func (w *Watch) take(event watch.Event) error {
	object, ok := event.Object.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("the watch says %s %+v", event.Type, event.Object)
	}
	n, err := strconv.Atoi(object.Data[counter])
	if err != nil {
		return fmt.Errorf("read the counter: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n != w.seen+1 {
		return fmt.Errorf("change %d came after change %d", n, w.seen)
	}
	w.seen = n
	close(w.advanced)
	w.advanced = make(chan struct{})
	return nil
}

func (w *Watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = fmt.Errorf("watch of %s in %s: %w", w.Name, w.Cluster, err)
}

// Result returns the number of watches that were started, and the errors of the watches that did not end cleanly. It
// returns an error if a change was lost or received twice, or if the watch was abandoned.
func (w *Watch) Result() (starts int, broken []string, fault error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.starts, w.broken, w.fault
}

// Reset drops the record of how watches ended.
func (w *Watch) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = nil
}

// Await returns when change n has been received.
func (w *Watch) Await(ctx context.Context, n int) error {
	for {
		w.mu.Lock()
		seen, advanced, fault := w.seen, w.advanced, w.fault
		w.mu.Unlock()
		if fault != nil || seen >= n {
			return fault
		}
		select {
		case <-advanced:
		case <-ctx.Done():
			return fmt.Errorf("watch of %s in %s has seen change %d, not %d: %w", w.Name, w.Cluster, seen, n, ctx.Err())
		}
	}
}

// Counter returns the content of a watched ConfigMap at change n.
func Counter(n int) map[string]string { return map[string]string{counter: strconv.Itoa(n)} }
