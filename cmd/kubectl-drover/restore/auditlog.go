// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// auditEvent contains the fields of an audit event that the command reads.
type auditEvent struct {
	AuditID    string `json:"auditID"`
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	Object struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received metav1.MicroTime `json:"requestReceivedTimestamp"`
	Reached  metav1.MicroTime `json:"stageTimestamp"`
}

// auditObject is the object that a request refers to.
type auditObject struct{ resource, namespace, name string }

// auditRequest is a request that changed or deleted an object.
type auditRequest struct {
	received, done time.Time
	verb, user     string
}

// auditCollection is a request that deleted several objects at once.
type auditCollection struct {
	auditRequest
	resource, namespace string
	selects             func(metav1.Object) bool
}

// auditLog holds the requests from audit logs that may have revoked an agent.
type auditLog struct {
	first time.Time // time of the earliest request of any kind, or zero if the log is empty
	// writes is the number of requests that wrote a Secret.
	writes      int
	deleted     map[auditObject]auditRequest // latest deletion of each object
	changed     map[auditObject]auditRequest // latest creation or change of each object
	collections []auditCollection
}

// readAuditLogs reads audit logs from files. The name "-" means standard input. If an error occurs, readAuditLogs
// returns the error together with the requests that it has already read.
func readAuditLogs(in io.Reader, progress io.Writer, names []string) (*auditLog, error) {
	log := &auditLog{deleted: map[auditObject]auditRequest{}, changed: map[auditObject]auditRequest{}}
	var errs []error
	for _, name := range names {
		fmt.Fprintf(progress, "Reading %s\n", cli.Visible(name))
		if err := log.readFile(in, name); err != nil {
			errs = append(errs, fmt.Errorf("read audit log %s: %w", name, err))
		}
	}
	return log, errors.Join(errs...)
}

func (l *auditLog) readFile(in io.Reader, name string) error {
	if name == "-" {
		return l.read(in)
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if !strings.HasSuffix(name, ".gz") {
		return l.read(file)
	}
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	return l.read(unpacked)
}

func (l *auditLog) read(r io.Reader) error {
	for events := json.NewDecoder(r); ; {
		event := auditEvent{}
		if err := events.Decode(&event); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("invalid event at byte %d: %w; the rest of the file was not read; correct the file and run the "+
				"command again", events.InputOffset(), err)
		}
		if event.AuditID == "" || event.Stage == "" || event.Received.IsZero() {
			return fmt.Errorf("invalid event at byte %d: it is not an audit event; the rest of the file was not read",
				events.InputOffset())
		}
		l.add(&event)
	}
}

// add records an event if it may have revoked an agent. It ignores failed requests. A request whose response has no
// status code counts as successful.
func (l *auditLog) add(e *auditEvent) {
	if l.first.IsZero() || e.Received.Time.Before(l.first) {
		l.first = e.Received.Time
	}
	done := e.Response.Code == 0 || e.Response.Code/100 == 2
	at, err := url.ParseRequestURI(e.RequestURI)
	if e.Stage != "ResponseComplete" || !done || e.Object.Subresource != "" || err == nil && at.Query().Has("dryRun") {
		return
	}
	object := auditObject{e.Object.Resource, e.Object.Namespace, e.Object.Name}
	switch e.Object.APIGroup + "/" + e.Object.Resource {
	case "/secrets":
		if e.Verb == "create" || e.Verb == "update" || e.Verb == "patch" || strings.HasPrefix(e.Verb, "delete") {
			l.writes++
		}
	case "/namespaces":
		object.namespace = "" // for a Namespace object, the API server also sets the namespace field of the request
	case v1.Group + "/clusters", v1.Group + "/hosts":
	default:
		return
	}
	request := auditRequest{received: e.Received.Time, done: e.Reached.Time, verb: e.Verb, user: e.User.Username}
	switch e.Verb {
	case "delete":
		keepLatest(l.deleted, object, request)
	case "create", "update", "patch":
		keepLatest(l.changed, object, request)
	case "deletecollection":
		l.collections = append(l.collections, auditCollection{request, object.resource, object.namespace, selectorOf(at)})
	}
}

func keepLatest(requests map[auditObject]auditRequest, object auditObject, request auditRequest) {
	if request.done.After(requests[object].done) {
		requests[object] = request
	}
}

// selectorOf returns the selector in a request's URI. If the selector cannot be parsed, the returned selector matches
// everything.
func selectorOf(at *url.URL) func(metav1.Object) bool {
	all := func(metav1.Object) bool { return true }
	if at == nil {
		return all
	}
	query := at.Query()
	byLabels, err := labels.Parse(query.Get("labelSelector"))
	byFields, failed := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil || failed != nil {
		return all
	}
	return func(o metav1.Object) bool {
		known := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace(), "type": string(corev1.SecretTypeOpaque)}
		return byLabels.Matches(labels.Set(o.GetLabels())) && byFields.Matches(known)
	}
}
