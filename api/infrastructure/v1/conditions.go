// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Conditions of the kinds of this package. Cluster API copies Ready to the condition InfrastructureReady of its Cluster
// or Machine.
const (
	// ConditionReady of a DroverCluster is True when Cluster API can reach the cluster as soon as its agent connects.
	// ConditionReady of a DroverMachine is True when the Host has carried out the bootstrap and is connected.
	ConditionReady = "Ready"
	// ConditionTasksSucceeded of a DroverMachine is present while the machine has tasks. It is False while a task is
	// running or waiting, and when a task has failed.
	ConditionTasksSucceeded = "TasksSucceeded"
	// ConditionEtcdScheduled of a DroverCluster is present while it has a schedule of snapshots. It is False if the
	// schedule is invalid or the provisioner takes no snapshots. The message says what to do.
	ConditionEtcdScheduled = "EtcdScheduled"
	// ConditionPaused is True while Cluster API has paused the object.
	ConditionPaused = "Paused"
)

// Reasons of Ready.
const (
	// ReasonHubUnknown means that the manager has not published the hub's address and CA, because it is older
	// than the provisioner or is not running.
	ReasonHubUnknown = "HubUnknown"
	// ReasonProvisioned means that the infrastructure is complete.
	ReasonProvisioned = "Provisioned"
	// ReasonWaitingForOwner means that Cluster API has not set the owner reference yet.
	ReasonWaitingForOwner = "WaitingForOwner"
	// ReasonPaused means that Cluster API has paused the cluster or the object.
	ReasonPaused = "Paused"
	// ReasonClusterMissing means that no Drover Cluster has the same name as the Cluster of Cluster API.
	ReasonClusterMissing = "ClusterMissing"
	// ReasonSecretConflict means that the Secret "<cluster>-kubeconfig", or "<host>-host-plan" of a machine's Host,
	// exists and does not belong to Drover.
	ReasonSecretConflict = "SecretConflict"
	// ReasonNotPermitted means that the provisioner has no right to the Secrets of the workspace. Stalled.
	ReasonNotPermitted = "NotPermitted"
	// ReasonWaitingForCluster means that the DroverCluster is not provisioned yet.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonWaitingForBootstrap means that the bootstrap provider has not written its data yet.
	ReasonWaitingForBootstrap = "WaitingForBootstrap"
	// ReasonBootstrapRefused means that the bootstrap data requests something that Drover does not support on Hosts.
	// The message names it.
	ReasonBootstrapRefused = "BootstrapRefused"
	// ReasonNoHost means that the workspace has no available Host that the machine can take. The message counts the
	// Hosts by reason.
	ReasonNoHost = "NoHost"
	// ReasonBootstrapping means that the Host is carrying out the bootstrap.
	ReasonBootstrapping = "Bootstrapping"
	// ReasonBootstrapFailed means that the bootstrap failed on the Host, whose status has the last lines of output. It
	// is not repeated: let Cluster API replace the machine.
	ReasonBootstrapFailed = "BootstrapFailed"
	// ReasonHostLost means that the Host's agent is not connected.
	ReasonHostLost = "HostLost"
	// ReasonHostGone means that the Host or its instructions were deleted.
	ReasonHostGone = "HostGone"
	// ReasonReleasing means that the machine is being deleted, and its Host is being cleaned.
	ReasonReleasing = "Releasing"
)

// Reasons of TasksSucceeded.
const (
	// ReasonTasksSucceeded means that all tasks have succeeded.
	ReasonTasksSucceeded = "Succeeded"
	// ReasonTaskRunning means that a task is running or is waiting for the Host.
	ReasonTaskRunning = "TaskRunning"
	// ReasonTaskFailed means that a task failed. The message has the last lines of its output. The task is not
	// repeated.
	ReasonTaskFailed = "TaskFailed"
)

// Reasons of EtcdScheduled.
const (
	// ReasonScheduled means that the schedule is valid. The latest EtcdSnapshot shows whether scheduled snapshots are
	// taken.
	ReasonScheduled = "Scheduled"
	// ReasonScheduleInvalid means that the schedule cannot be parsed, or it matches no future time.
	ReasonScheduleInvalid = "ScheduleInvalid"
)

// Names that the provisioner uses.
const (
	// ProviderIDPrefix is followed by "<workspace>/<host>" in a provider ID.
	ProviderIDPrefix = "drover://"
	// FinalizerHost keeps a DroverMachine until its Host has been cleaned and released.
	FinalizerHost = Group + "/host"
	// AnnotationUpdateAttempt on a DroverMachine repeats a failed update in place whenever its value changes.
	AnnotationUpdateAttempt = Group + "/update-attempt"
	// KubeconfigSecretSuffix is appended to the name of the Cluster to form the name of the kubeconfig Secret that Cluster
	// API reads.
	KubeconfigSecretSuffix = "-kubeconfig"
)
