// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inplace serves the runtime hooks that let Cluster API update machines in place.
//
// Cluster API does not authenticate its calls, because by default it has no client certificate for extensions. Anyone
// who can connect to the port can therefore call a hook. This is safe for three reasons: a hook makes only changes that
// Cluster API's own objects request, its response contains no data about other objects, and the cost of a call is
// limited.
package inplace

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Path is the prefix of the hooks' paths. Cluster API appends the rest of the path for each hook.
const Path = "/v1/cluster-api"

// groupVersion is the group and version of the hooks.
const groupVersion = "hooks.runtime.cluster.x-k8s.io/v1alpha1"

const (
	// answerLimit is the deadline for a response. It includes the time that the call waits in a queue. Cluster API
	// waits for 10 s.
	answerLimit = 9 * time.Second
	// readLimit is the time limit for receiving a request.
	readLimit = 3 * time.Second
)

// bounds returns the limits on a request. A request contains up to six objects, and bootstrap configurations contain
// files.
func bounds() untrusted.Bounds { return untrusted.Large() }

// Hooks serves the runtime hooks.
type Hooks struct {
	// Live reads from the API server.
	Live client.Reader
	// Writer writes the tasks of DroverMachines.
	Writer client.Writer
	Log    logr.Logger

	gate *limit.Gate
}

// New returns Hooks that serve at most eight calls at the same time, and at most two from one address (or IPv6 /64).
// Additional calls wait.
func New(h Hooks) *Hooks {
	h.gate = limit.NewGate(limit.Bounds{User: 2, All: 8, Queue: 64, QueueUser: 32, Wait: answerLimit}, limit.Observer{})
	return &h
}

// Only the fields that are needed are decoded from requests.
type (
	// request is a CanUpdateMachine or CanUpdateMachineSet request.
	request struct {
		Current objects `json:"current"`
		Desired objects `json:"desired"`
	}
	objects struct {
		Machine                       spec           `json:"machine"`
		InfrastructureMachine         infrastructure `json:"infrastructureMachine"`
		BootstrapConfig               bootstrap      `json:"bootstrapConfig"`
		MachineSet                    template       `json:"machineSet"`
		InfrastructureMachineTemplate infrastructure `json:"infrastructureMachineTemplate"`
		BootstrapConfigTemplate       bootstrap      `json:"bootstrapConfigTemplate"`
	}
	spec struct {
		Spec struct {
			Version string `json:"version"`
		} `json:"spec"`
	}
	template struct {
		Spec struct {
			Template spec `json:"template"`
		} `json:"spec"`
	}
	bootstrap struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       struct {
			ClusterConfiguration fields `json:"clusterConfiguration"`
			JoinConfiguration    fields `json:"joinConfiguration"`
		} `json:"spec"`
	}
	// fields are the undecoded fields of an object.
	fields map[string]json.RawMessage
	// order is an UpdateMachine request. Only the identity of the Machine is read from the request. The update itself is
	// read from the API server.
	order struct {
		Desired struct {
			Machine struct {
				Metadata struct {
					Namespace string `json:"namespace"`
					Name      string `json:"name"`
				} `json:"metadata"`
			} `json:"machine"`
		} `json:"desired"`
	}
)

// response is a response from a hook. Each hook sets only some of the fields.
type response struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Status is "Success" or "Failure".
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`

	Handlers []handler `json:"handlers,omitempty"`
	// RetryAfterSeconds is 0 if the update has been completed.
	RetryAfterSeconds int32 `json:"retryAfterSeconds,omitempty"`

	MachinePatch                       *patch `json:"machinePatch,omitempty"`
	InfrastructureMachinePatch         *patch `json:"infrastructureMachinePatch,omitempty"`
	BootstrapConfigPatch               *patch `json:"bootstrapConfigPatch,omitempty"`
	MachineSetPatch                    *patch `json:"machineSetPatch,omitempty"`
	InfrastructureMachineTemplatePatch *patch `json:"infrastructureMachineTemplatePatch,omitempty"`
}

// handler describes a hook that is served.
type handler struct {
	Name        string `json:"name"`
	RequestHook struct {
		APIVersion string `json:"apiVersion"`
		Hook       string `json:"hook"`
	} `json:"requestHook"`
}

// patch describes the changes that are made in place.
type patch struct {
	PatchType string `json:"patchType"`
	Patch     []byte `json:"patch"`
}

// Register adds the hooks to a mux.
func (h *Hooks) Register(mux *http.ServeMux) {
	var served []handler
	add := func(hook, name string, serve http.Handler) {
		mux.Handle("POST "+Path+"/"+groupVersion+"/"+strings.ToLower(hook)+"/"+name, serve)
		found := handler{Name: name}
		found.RequestHook.APIVersion, found.RequestHook.Hook = groupVersion, hook
		served = append(served, found)
	}
	add("CanUpdateMachine", "can-update-machine", serve(h, "CanUpdateMachine", func(_ context.Context, q *request) (response, error) { return canUpdateMachine(q), nil }))
	add("CanUpdateMachineSet", "can-update-machine-set", serve(h, "CanUpdateMachineSet", func(_ context.Context, q *request) (response, error) { return canUpdateMachineSet(q), nil }))
	add("UpdateMachine", "update-machine", serve(h, "UpdateMachine", h.updateMachine))
	mux.Handle("POST "+Path+"/"+groupVersion+"/discovery", serve(h, "Discovery", func(context.Context, *struct{}) (response, error) {
		return response{Status: success, Handlers: served}, nil
	}))
}

const success, failure = "Success", "Failure"

// serve returns a handler that responds to calls of a hook. If a call fails, the reason is logged but not sent to the
// caller.
func serve[Request any](h *Hooks, hook string, decide func(context.Context, *Request) (response, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerLimit)
		defer cancel()
		seat, err := h.gate.Enter(ctx, limit.Requester{User: limit.Source(r.RemoteAddr)})
		if err != nil {
			http.Error(w, "too many hooks are called at once; try again", http.StatusTooManyRequests)
			return
		}
		defer seat.Release()
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readLimit)) // slow clients must not hold seats
		request := new(Request)
		if err := untrusted.ReadJSON(http.MaxBytesReader(w, r.Body, int64(bounds().Bytes)), request, bounds()); err != nil {
			http.Error(w, "the request is not the JSON of "+hook+" in "+groupVersion+", or is too large", http.StatusBadRequest)
			return
		}
		out, err := decide(ctx, request)
		if err != nil {
			h.Log.Error(err, "a hook of Cluster API was not answered", "hook", hook)
			http.Error(w, "the hook could not be answered: see drover-provisioner's log", http.StatusServiceUnavailable)
			return
		}
		out.APIVersion, out.Kind = groupVersion, hook+"Response"
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(out)
	})
}
