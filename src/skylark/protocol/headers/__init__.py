"""Typed headers, by conversation."""

from .route import AddWritePermOfBrokerRequest as AddWritePermOfBrokerRequest
from .route import AddWritePermOfBrokerResponse as AddWritePermOfBrokerResponse
from .route import DeleteKVConfigRequest as DeleteKVConfigRequest
from .route import DeleteTopicInNamesrvRequest as DeleteTopicInNamesrvRequest
from .route import GetKVConfigRequest as GetKVConfigRequest
from .route import GetKVConfigResponse as GetKVConfigResponse
from .route import GetKVListByNamespaceRequest as GetKVListByNamespaceRequest
from .route import GetRouteInfoRequest as GetRouteInfoRequest
from .route import GetTopicsByClusterRequest as GetTopicsByClusterRequest
from .route import PutKVConfigRequest as PutKVConfigRequest
from .route import QueryDataVersionRequest as QueryDataVersionRequest
from .route import QueryDataVersionResponse as QueryDataVersionResponse
from .route import RegisterBrokerRequest as RegisterBrokerRequest
from .route import RegisterBrokerResponse as RegisterBrokerResponse
from .route import UnregisterBrokerRequest as UnregisterBrokerRequest
from .route import WipeWritePermOfBrokerRequest as WipeWritePermOfBrokerRequest
from .route import WipeWritePermOfBrokerResponse as WipeWritePermOfBrokerResponse
